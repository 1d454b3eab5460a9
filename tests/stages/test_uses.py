"""Training for roles and for shorter vectors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cse.errors import CseError
from cse.evaluation.score import score_dev
from cse.model.checkpoint import read_config
from cse.model.sentence_encoder import SentenceEncoder
from cse.stages.train import train_stage
from cse.training import Folders
from cse.training.ready import open_training
from tests.stages.training import train_in

TRIPLETS = {"data.view": "triplets", "backbone.texts": {"query": "the old ", "passage": "a red "}}
ROLES = {"train.roles": ["query", "passage", "passage"]}


@pytest.fixture
def opened(data, settings, tmp_path):
    def call(changes, view="triplets"):
        folders = Folders(data[view], tmp_path, tmp_path / "corrupted")
        return open_training(settings(changes), folders, scratch=tmp_path / "scratch")

    return call


def test_a_sentence_has_half_of_the_tokens_beside_its_task_text(opened):
    column = (
        opened(ROLES | TRIPLETS | {"backbone.texts": {"query": "red " * 4, "passage": "a "}}).tables()[0].columns[0]
    )
    rows = {tuple(column.ids[a:b].tolist()) for a, b in zip(column.starts, column.starts[1:], strict=False)}
    assert len(rows) > 20, "texts behind the longest task text differ"


@pytest.mark.parametrize("post", ["none", "whitening"])
def test_the_reported_dev_score_is_read_as_the_gate_reads_it(data, settings, tmp_path, post):
    changes = TRIPLETS | ROLES | {"post.kind": post}
    given = {"prepared": data["triplets"], "corrupted": tmp_path / "corrupted", "scratch": tmp_path / "scratch"}
    places = {"checkpoint": tmp_path / "checkpoint", "metrics": tmp_path / "train.json", "plots": tmp_path / "plots"}
    folders = Folders(given["prepared"], tmp_path, given["corrupted"])
    before = open_training(settings(changes), folders, scratch=given["scratch"])
    facts = train_stage(settings(changes), **given, **places)
    trained, dev = SentenceEncoder.load(tmp_path / "checkpoint"), before.dev
    assert facts["dev_spearman"] == pytest.approx(score_dev(trained, dev).value, abs=1e-3)
    read_in_roles = replace(
        dev, sentence1=["the old " + x for x in dev.sentence1], sentence2=["a red " + x for x in dev.sentence2]
    )
    trained.post = None
    assert facts["selection_spearman"] == pytest.approx(score_dev(trained, read_in_roles).value, abs=1e-3)
    assert abs(facts["selection_spearman"] - facts["dev_spearman"]) > 1
    if post == "none":
        assert facts["start_dev_spearman"] == pytest.approx(score_dev(before.encoder, dev).value, abs=1e-3)
    else:
        assert "start_dev_spearman" not in facts, "the model before training had no post-processing"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.roles": ["query", "passage"]}, "train.roles: 2 roles for 3 columns of text"),
        ({"train.roles": ["query", "pasage", "passage"]}, "'pasage' is not known; one of query, passage"),
        ({"backbone.texts": {"query": "red " * 600}}, "leaves no room for the sentence"),
        (
            ROLES | {"backbone.texts": {"query": "the old ", "passage": "red " * 5}},
            r"train\.max_length: the task text 'red .* takes 7 of its 12 tokens, .* raise it to 14 or shorten",
        ),
    ],
)
def test_roles_that_do_not_fit(opened, changes, message):
    with pytest.raises(CseError, match=message):
        opened(TRIPLETS | changes)


def test_a_model_trained_for_shorter_vectors_offers_them(data, settings, tmp_path):
    changes = {"objective.matryoshka.weight": 1.0, "objective.matryoshka.widths": [16, 8]}
    train_in(tmp_path, settings(changes), data["sentences"])
    assert read_config(tmp_path / "checkpoint")["widths"] == [8, 16]
    assert SentenceEncoder.load(tmp_path / "checkpoint").encode("a dog", dimensions=8).shape == (8,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective.matryoshka.widths": [32]}, "32 is not below the 32 dimensions"),
        ({"objective.matryoshka.widths": [8], "pooler.mlp": "train_only"}, "the loss sees the projector's output"),
    ],
)
def test_widths_that_cannot_be_trained(opened, changes, message):
    with pytest.raises(CseError, match=message):
        opened({"objective.matryoshka.weight": 1.0} | changes, view="sentences")
