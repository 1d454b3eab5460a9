"""Pairs of plain sentences: those among each other's nearest, against loops by hand, and what training reads."""

from __future__ import annotations

import numpy as np
import pytest

from cse.data.store import PreparedData
from cse.model import neighbours
from cse.model.neighbours import mutual_neighbours
from cse.model.sentence_encoder import SentenceEncoder
from cse.stages.prepare import prepare_stage
from tests.parts import refusal
from tests.rows import write_lines
from tests.stages.training import train_in
from tests.tiny import WORDS


def unit(rows: int) -> np.ndarray:
    vectors = np.random.default_rng(3).normal(size=(rows, 5)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def naive(vectors, nearest):
    cosine = vectors @ vectors.T
    of = [
        sorted((j for j in range(len(vectors)) if j != i), key=lambda j: -cosine[i, j])[:nearest]
        for i in range(len(vectors))
    ]
    return [[i, j] for i in range(len(vectors)) for j in range(i + 1, len(vectors)) if j in of[i] and i in of[j]]


@pytest.mark.parametrize(("nearest", "cells"), [(1, 1 << 24), (3, 120), (36, 120)])
def test_pairs_are_mutual_neighbours(monkeypatch, nearest, cells):
    monkeypatch.setattr(neighbours, "CELLS", cells)
    found = mutual_neighbours(unit(37), nearest)
    assert found.tolist() == naive(unit(37), nearest)
    assert len(found) > 5
    assert mutual_neighbours(unit(3), 10).tolist() == [[0, 1], [0, 2], [1, 2]]
    assert mutual_neighbours(unit(1), 10).shape == (0, 2)


def test_sentences_are_prepared_as_pairs_and_trained_on(settings, models, tmp_path, capsys):
    rng = np.random.default_rng(1)
    sentences = list(dict.fromkeys(" ".join(rng.choice(WORDS, 4)) for _ in range(40)))
    files = {
        "data.source": "files",
        "data.dev": "own",
        "data.train_path": str(write_lines(tmp_path / "s.txt", sentences)),
    }
    wanted = settings(files | {"mine.neighbours": 2})
    prepare_stage(settings(files), prepared=tmp_path / "plain", progress=False)
    said = refusal(train_in, tmp_path, wanted, tmp_path / "plain")
    assert "plain: contains sentences, but mine.neighbours asks for pairs; run `cse prepare`" in said
    prepare_stage(wanted, prepared=tmp_path / "prepared", progress=False)
    data = PreparedData(tmp_path / "prepared")
    expected = mutual_neighbours(SentenceEncoder.load(str(models["bert"])).encode(sentences), 2)
    assert data.train["sent0"].to_pylist() == [sentences[first] for first, _ in expected]
    assert data.train["sent1"].to_pylist() == [sentences[second] for _, second in expected]
    assert f"pairs     {len(expected)} of sentences that are among" in capsys.readouterr().out
    assert train_in(tmp_path, wanted, tmp_path / "prepared")["trained_on"].endswith(f"{len(expected)} pairs")
