"""Training for roles and for shorter vectors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cse.evaluation.score import score_dev
from cse.model.checkpoint import read_config
from cse.model.sentence_encoder import SentenceEncoder
from tests.stages.training import train_in

TRIPLETS = {"data.view": "triplets", "backbone.texts": {"query": "the old ", "passage": "a red "}}
ROLES = {"train.roles": ["query", "passage", "passage"]}


def test_a_sentence_has_half_of_the_tokens_beside_its_task_text(opened, settings):
    changes = ROLES | TRIPLETS | {"backbone.texts": {"query": "red " * 4, "passage": "a "}}
    column = opened(settings(changes), "triplets").tables()[0].columns[0]
    rows = {tuple(column.ids[a:b].tolist()) for a, b in zip(column.starts, column.starts[1:], strict=False)}
    assert len(rows) > 20, "texts behind the longest task text differ"


@pytest.mark.parametrize("post", ["none", "whitening"])
def test_the_reported_dev_score_is_read_as_the_gate_reads_it(run, opened, settings, tmp_path, post, capsys):
    """Of the training's own reading, here by roles, it has a score too."""
    changes = TRIPLETS | ROLES | {"post.kind": post}
    before = opened(settings(changes), "triplets")
    facts = run(settings(changes), view="triplets")
    trained, dev = SentenceEncoder.load(tmp_path / "run/checkpoint"), before.dev
    assert facts["dev_spearman"] == pytest.approx(score_dev(trained, dev).value, abs=1e-3)
    read_in_roles = replace(
        dev, sentence1=["the old " + x for x in dev.sentence1], sentence2=["a red " + x for x in dev.sentence2]
    )
    trained.post = None
    assert facts["selection_spearman"] == pytest.approx(score_dev(trained, read_in_roles).value, abs=1e-3)
    assert abs(facts["selection_spearman"] - facts["dev_spearman"]) > 1
    assert f", encoded as in training {facts['selection_spearman']:.2f}" in capsys.readouterr().out
    if post == "none":
        assert facts["start_dev_spearman"] == pytest.approx(score_dev(before.encoder, dev).value, abs=1e-3)
    else:
        assert "start_dev_spearman" not in facts, "the model before training had no post-processing"


def test_a_model_trained_for_shorter_vectors_offers_them(data, settings, tmp_path):
    changes = {"objective.matryoshka.weight": 1.0, "objective.matryoshka.widths": [16, 8]}
    train_in(tmp_path, settings(changes), data["sentences"])
    assert read_config(tmp_path / "checkpoint")["widths"] == [8, 16]
    assert SentenceEncoder.load(tmp_path / "checkpoint").encode("a dog", dimensions=8).shape == (8,)
