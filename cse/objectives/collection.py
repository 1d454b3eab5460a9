r"""Rank a whole collection as a teacher ranks it: every document is a candidate in every step.

With ``s_d = cos(q, d)`` for the documents ``d`` of the collection, ``p_d`` the share that the teacher gives each, and
cosines divided by a temperature ``t``::

    L = mean_q -sum_d p_d log( exp(s_d / t) / sum_e exp(s_e / t) )

The documents' vectors are constants. The form is that of knowledge distillation (Hinton et al. 2015, equation 1) over
all documents in place of a batch, so there are no false negatives: what the teacher finds alike is not pushed away.

Of many documents a step ranks some: those that the teacher ranks for its queries, and others drawn at random that stand
for the rest, each for as many as it takes (the sampled softmax of Bengio and Senecal 2008).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cse.objectives.cosine import cosines
from cse.objectives.precision import in_float32

NO_DOCUMENT = -1


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
        place_BK: numbers of the K documents that the teacher gives a share, int64.
        share_BK: these shares; each row sums to 1.
        own_B: the document that a query was taken from and that is no candidate, int64; ``NO_DOCUMENT`` for none.
        times_N: how many documents each stands for in the sum over ``e``; None: 1.
    """
    logits_BN = cosines(query_BD, document_ND) / temperature
    if times_N is not None:
        logits_BN = logits_BN + times_N.log()
    from_B = torch.nonzero(own_B != NO_DOCUMENT).squeeze(1)
    # a large number in place of -inf, which a share of 0 would turn into "not a number"
    logits_BN = logits_BN.index_put((from_B, own_B[from_B]), logits_BN.new_tensor(-1e4))
    return -(share_BK * logits_BN.log_softmax(dim=1).gather(1, place_BK)).sum(dim=1).mean()


@dataclass(frozen=True)
class Ranked:
    """The documents that a step ranks.

    Attributes:
        number: which they are ``(M,)``, int64.
        times: how many each stands for ``(M,)``.
        place: where among them those with a share are ``(B, K)``, int64.
        own: where the document is that each query was taken from; ``NO_DOCUMENT`` for none ``(B,)``, int64.
    """

    number: torch.Tensor
    times: torch.Tensor
    place: torch.Tensor
    own: torch.Tensor


def ranked(place_BK: torch.Tensor, own_B: torch.Tensor, sample_S: torch.Tensor, count: int) -> Ranked:
    """Return the documents to rank in a step: all that a query of it needs, and those of a sample for the rest.

    Args:
        own_B: the document that each query was taken from; ``NO_DOCUMENT`` for none.
        sample_S: numbers of documents drawn at random, each once; all of them stand for themselves alone.
    """
    needed = torch.unique(torch.cat([place_BK.flatten(), own_B[own_B != NO_DOCUMENT]]))
    rest = sample_S[~torch.isin(sample_S, needed)]
    number = torch.cat([needed, rest])
    times = torch.ones(len(number), device=number.device)
    if len(rest):
        times[len(needed) :] = (count - len(needed)) / len(rest)
    own = torch.where(own_B == NO_DOCUMENT, own_B, torch.searchsorted(needed, own_B))
    return Ranked(number, times, torch.searchsorted(needed, place_BK.contiguous()), own)


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
    """Return ``collection_cross_entropy`` over what ``ranked`` chooses; without a sample over all documents."""
    if not len(sample_S):
        return collection_cross_entropy(query_BD, document_ND, place_BK, share_BK, own_B, temperature=temperature)
    step = ranked(place_BK, own_B, sample_S, len(document_ND))
    return collection_cross_entropy(
        query_BD, document_ND[step.number], step.place, share_BK, step.own, temperature=temperature, times_N=step.times
    )
