"""A system's loss: named terms with weights over the embeddings of one batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from cse.objectives.cosine import cosines
from cse.objectives.energy_hinge import energy_hinge
from cse.objectives.nt_xent import nt_xent

# cosines to the positives and to the hard negatives (None where the view has none) -> a scalar
Term = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]


@dataclass(frozen=True)
class Objective:
    """Weighted terms; a term with weight 0 is not built at all.

    Attributes:
        terms: name to (weight, function of the cosines).
    """

    terms: Mapping[str, tuple[float, Term]]

    def __call__(self, views_VBD: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
        """Return every unweighted term by name, and their weighted sum as ``loss``; each a scalar.

        Args:
            views_VBD: embeddings of the anchors, the positives and, for triplets, the hard negatives, each ``(B, D)``.
        """
        anchor_BD, positive_BD, *rest = views_VBD
        positive_BN = cosines(anchor_BD, positive_BD)
        negative_BN = cosines(anchor_BD, rest[0]) if rest else None
        values = {name: term(positive_BN, negative_BN) for name, (_, term) in self.terms.items()}
        loss = torch.stack([weight * values[name] for name, (weight, _) in self.terms.items()]).sum()
        return values | {"loss": loss}


def build_objective(
    *,
    nt_xent_weight: float = 1.0,
    temperature: float = 0.05,
    hard_negative_weight: float = 0.0,
    hinge_weight: float = 0.0,
    margin: float = 0.2,
) -> Objective:
    """Compose NT-Xent and the energy-based hinge; the hinge needs hard negatives (PromCSE equation 8)."""
    terms: dict[str, tuple[float, Term]] = {}
    if nt_xent_weight > 0:
        terms["nt_xent"] = (
            nt_xent_weight,
            lambda positive, negative: nt_xent(
                positive, negative, temperature=temperature, hard_negative_weight=hard_negative_weight
            ),
        )
    if hinge_weight > 0:

        def hinge(positive_BN: torch.Tensor, negative_BN: torch.Tensor | None) -> torch.Tensor:
            if negative_BN is None:
                raise ValueError("objective.energy_hinge: needs hard negatives; use triplets")
            return energy_hinge(positive_BN, negative_BN, margin=margin)

        terms["energy_hinge"] = (hinge_weight, hinge)
    return Objective(terms)
