"""A system's loss: named terms with weights over the embeddings of one batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from cse.objectives.cosine import cosines
from cse.objectives.energy_hinge import energy_hinge
from cse.objectives.nt_xent import nt_xent, nt_xent_two_views

# embeddings of the views, each (B, D), and further negatives (Q, D) or None -> a scalar
Term = Callable[[tuple[torch.Tensor, ...], torch.Tensor | None], torch.Tensor]


@dataclass(frozen=True)
class Objective:
    """Weighted terms over the embeddings of one batch; a term with weight 0 is not built at all.

    Attributes:
        terms: name to (weight, function of the views).
    """

    terms: Mapping[str, tuple[float, Term]]

    def __call__(
        self, views_VBD: tuple[torch.Tensor, ...], queue_QD: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Return every unweighted term by name, and their weighted sum as ``loss``; each a scalar.

        Args:
            views_VBD: embeddings of the anchors, the positives and, for triplets, the hard negatives, each ``(B, D)``.
            queue_QD: further negatives, or None.
        """
        values = {name: term(views_VBD, queue_QD) for name, (_, term) in self.terms.items()}
        loss = views_VBD[0].new_zeros(())
        for name, (weight, _) in self.terms.items():
            loss = loss + weight * values[name]
        return values | {"loss": loss}


def build_objective(
    *,
    nt_xent_weight: float = 1.0,
    temperature: float = 0.05,
    hard_negative_weight: float = 0.0,
    two_views: bool = False,
    hinge_weight: float = 0.0,
    margin: float = 0.2,
) -> Objective:
    """Compose NT-Xent and the energy-based hinge; the hinge needs hard negatives (PromCSE equation 12)."""

    def contrast(views_VBD: tuple[torch.Tensor, ...], queue_QD: torch.Tensor | None) -> torch.Tensor:
        anchor_BD, positive_BD, *rest = views_VBD
        if two_views:
            return nt_xent_two_views(anchor_BD, positive_BD, temperature=temperature)
        return nt_xent(
            cosines(anchor_BD, positive_BD),
            cosines(anchor_BD, rest[0]) if rest else None,
            temperature=temperature,
            hard_negative_weight=hard_negative_weight,
            queue_BQ=None if queue_QD is None else cosines(anchor_BD, queue_QD),
        )

    def hinge(views_VBD: tuple[torch.Tensor, ...], _: torch.Tensor | None) -> torch.Tensor:
        if len(views_VBD) < 3:
            raise ValueError("objective.energy_hinge: needs hard negatives; use triplets")
        anchor_BD, positive_BD, negative_BD = views_VBD
        return energy_hinge(cosines(anchor_BD, positive_BD), cosines(anchor_BD, negative_BD), margin=margin)

    terms: dict[str, tuple[float, Term]] = {}
    if nt_xent_weight > 0:
        terms["nt_xent"] = (nt_xent_weight, contrast)
    if hinge_weight > 0:
        terms["energy_hinge"] = (hinge_weight, hinge)
    return Objective(terms)
