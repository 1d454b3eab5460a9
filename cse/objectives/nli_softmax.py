r"""Classification of sentence pairs (SBERT, Reimers and Gurevych 2019, section 3).

With ``u``, ``v`` the embeddings of the two sentences of a pair and ``W`` a trained ``(3, 3D)`` matrix::

    logits = W (u, v, |u - v|)
    L      = mean -log softmax(logits)[label]
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from cse.objectives.precision import in_float32


@in_float32
def pair_features(first_BD: torch.Tensor, second_BD: torch.Tensor) -> torch.Tensor:
    """Return ``(u, v, |u - v|)`` of the embeddings ``u`` and ``v`` of each pair, ``(B, 3D)``."""
    return torch.cat([first_BD, second_BD, (first_BD - second_BD).abs()], dim=-1)


@in_float32
def nli_softmax(logits_B3: torch.Tensor, label_B: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy, a scalar in nats.

    Args:
        label_B: classes, int64 in 0 to 2.
    """
    return F.cross_entropy(logits_B3, label_B)
