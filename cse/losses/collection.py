r"""Rank a whole collection as a teacher ranks it: what ``post.kind: query_map`` is trained by.

With ``s_d = cos(q, d)`` for the documents ``d`` of the collection, ``p_d`` the share that the teacher gives each, and
cosines divided by a temperature ``t``::

    L = mean_q -sum_d p_d log( exp(s_d / t) / sum_e exp(s_e / t) )

The documents' vectors are constants. The form is that of knowledge distillation (Hinton et al. 2015, equation 1) over
all documents in place of a batch, so there are no false negatives: what the teacher finds alike is not pushed away.

Of many documents a step ranks some: those that the teacher ranks for its queries, and others drawn at random that stand
for the rest, each for as many as it takes (the sampled softmax of Bengio and Senecal 2008).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from cse.losses.shared import cosines, in_float32

NO_DOCUMENT = -1
TEMPERATURE = 0.03


@dataclass(frozen=True)
class Targets:
    """What a teacher thinks of the documents, for each query.

    Attributes:
        place: numbers of the documents with a share ``(n, K)``, int64.
        share: their shares, which sum to 1 ``(n, K)``, float32.
        own: the document that a query was taken from, no candidate; ``NO_DOCUMENT`` for none ``(n,)``, int64.
        sample: numbers of documents at random that a step ranks beside those with a share; none: it ranks all.
    """

    place: NDArray[np.int64]
    share: NDArray[np.float32]
    own: NDArray[np.int64]
    sample: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))


@in_float32
def collection_cross_entropy(
    query_BD: torch.Tensor,
    document_ND: torch.Tensor,
    place_BK: torch.Tensor,
    share_BK: torch.Tensor,
    own_B: torch.Tensor,
    *,
    temperature: float,
    times_N: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the mean cross-entropy of the teacher's shares and the cosines' softmax, a scalar in nats.

    Args:
        times_N: how many documents each stands for in the sum over ``e``; None: 1.
    """
    logits_BN = cosines(query_BD, document_ND) / temperature
    if times_N is not None:
        logits_BN = logits_BN + times_N.log()
    from_B = torch.nonzero(own_B != NO_DOCUMENT).squeeze(1)
    # a large number in place of -inf, which a share of 0 would turn into "not a number"
    logits_BN = logits_BN.index_put((from_B, own_B[from_B]), logits_BN.new_tensor(-1e4))
    return -(share_BK * logits_BN.log_softmax(dim=1).gather(1, place_BK)).sum(dim=1).mean()


def sampled_cross_entropy(
    query_BD: torch.Tensor,
    document_ND: torch.Tensor,
    place_BK: torch.Tensor,
    share_BK: torch.Tensor,
    own_B: torch.Tensor,
    sample_S: torch.Tensor,
    *,
    temperature: float,
) -> torch.Tensor:
    """Return ``collection_cross_entropy`` over all that a query of the step needs, and those of a sample for the rest.

    Args:
        sample_S: numbers of documents drawn at random, each once; none: all documents stand for themselves.
    """
    if not len(sample_S):
        return collection_cross_entropy(query_BD, document_ND, place_BK, share_BK, own_B, temperature=temperature)
    needed = torch.unique(torch.cat([place_BK.flatten(), own_B[own_B != NO_DOCUMENT]]))
    rest = sample_S[~torch.isin(sample_S, needed)]
    times_M = torch.ones(len(needed) + len(rest), device=needed.device)
    if len(rest):
        times_M[len(needed) :] = (len(document_ND) - len(needed)) / len(rest)
    return collection_cross_entropy(
        query_BD,
        document_ND[torch.cat([needed, rest])],
        torch.searchsorted(needed, place_BK.contiguous()),
        share_BK,
        torch.where(own_B == NO_DOCUMENT, own_B, torch.searchsorted(needed, own_B)),
        temperature=temperature,
        times_N=times_M,
    )
