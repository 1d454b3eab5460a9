"""The cross-entropy over a whole collection against numpy."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from cse.losses.collection import NO_DOCUMENT, collection_cross_entropy, sampled_cross_entropy
from cse.losses.shared import cosines

RNG = np.random.default_rng(0)
QUERIES, DOCUMENTS = RNG.normal(size=(4, 6)), RNG.normal(size=(9, 6))
PLACE = np.array([[0, 3, 8], [1, 2, 4], [8, 7, 6], [5, 0, 1]])
SHARE = RNG.dirichlet(np.ones(3), size=4)
OWN = np.array([2, NO_DOCUMENT, 0, 8])


def found(queries=QUERIES, documents=DOCUMENTS, place=PLACE, share=SHARE, own=OWN, temperature=0.3):
    tensors = (torch.from_numpy(np.asarray(value)) for value in (queries, documents, place, share, own))
    return collection_cross_entropy(*tensors, temperature=temperature).item()


def test_it_is_the_cross_entropy_over_all_documents_but_the_own():
    unit = [values / np.linalg.norm(values, axis=1, keepdims=True) for values in (QUERIES, DOCUMENTS)]
    losses = []
    for row, own in enumerate(OWN):
        candidates = [place for place in range(len(DOCUMENTS)) if place != own]
        logs = dict(zip(candidates, log_softmax(unit[0][row] @ unit[1][candidates].T / 0.3), strict=True))
        losses.append(-sum(share * logs[place] for share, place in zip(SHARE[row], PLACE[row], strict=True)))
    assert found() == pytest.approx(np.mean(losses), rel=1e-12)


def test_a_share_of_zero_for_the_own_document_adds_nothing():
    with_own = np.column_stack([PLACE, np.maximum(OWN, 0)]), np.column_stack([SHARE, np.zeros(4)])
    assert found(place=with_own[0], share=with_own[1]) == pytest.approx(found(), rel=1e-12)


# ---- a sample in place of all -------------------------------------------------------------------------------------


def tensors(*values):
    return tuple(torch.from_numpy(np.asarray(value)) for value in values)


def test_a_sample_of_all_documents_is_the_whole_collection():
    given = tensors(QUERIES, DOCUMENTS, PLACE, SHARE, OWN)
    sampled = sampled_cross_entropy(*given, torch.arange(9), temperature=0.3)
    assert sampled.item() == pytest.approx(found(), rel=1e-12)
    none = sampled_cross_entropy(*given, torch.arange(0), temperature=0.3)
    assert none.item() == pytest.approx(found(), rel=1e-12)


def test_a_step_reads_the_documents_it_ranks_alone():
    """All others are not a number; those of the sample stand for 958 that no query needs."""
    place, own = torch.arange(40).reshape(4, 10), torch.tensor([50, NO_DOCUMENT, 3, 51])
    sample, needed = torch.arange(0, 1000, 10), [*range(40), 50, 51]
    ranked = torch.tensor([*needed, *(number for number in sample.tolist() if number not in needed)])
    documents = torch.full((1000, 6), torch.nan)
    documents[ranked] = torch.randn(len(ranked), 6, generator=torch.Generator().manual_seed(0))
    share, queries = torch.full((4, 10), 0.1), torch.from_numpy(QUERIES).float()
    found = sampled_cross_entropy(queries, documents, place, share, own, sample, temperature=0.3)
    logits = cosines(queries, documents[ranked]) / 0.3
    logits[:, 42:] += np.log(958 / (len(ranked) - 42))
    for row in (0, 2, 3):
        logits[row, ranked == own[row]] = -torch.inf
    assert found.item() == pytest.approx(-logits.log_softmax(dim=1).gather(1, place).mean().item(), rel=1e-5)
