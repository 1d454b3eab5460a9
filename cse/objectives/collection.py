r"""Rank a whole collection as a teacher ranks it: every document is a candidate in every step.

With ``s_d = cos(q, d)`` for the documents ``d`` of the collection, ``p_d`` the share that the teacher gives each, and
cosines divided by a temperature ``t``::

    L = mean_q -sum_d p_d log( exp(s_d / t) / sum_e exp(s_e / t) )

The documents' vectors are constants. The form is that of knowledge distillation (Hinton et al. 2015, equation 1) over
all documents in place of a batch, so there are no false negatives: what the teacher finds alike is not pushed away.
"""

from __future__ import annotations

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
) -> torch.Tensor:
    """Return the mean cross-entropy of the teacher's shares and the cosines' softmax, a scalar in nats.

    Args:
        query_BD: vectors of the queries, of any length.
        document_ND: vectors of all documents, of any length.
        place_BK: numbers of the K documents that the teacher gives a share, int64.
        share_BK: these shares; each row sums to 1.
        own_B: the document that a query was taken from and that is no candidate, int64; ``NO_DOCUMENT`` for none.
        temperature: t.
    """
    logits_BN = cosines(query_BD, document_ND) / temperature
    from_B = torch.nonzero(own_B != NO_DOCUMENT).squeeze(1)
    # a large number in place of -inf, which a share of 0 would turn into "not a number"
    logits_BN = logits_BN.index_put((from_B, own_B[from_B]), logits_BN.new_tensor(-1e4))
    return -(share_BK * logits_BN.log_softmax(dim=1).gather(1, place_BK)).sum(dim=1).mean()
