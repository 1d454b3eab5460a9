"""Stage ``mine``: the negatives of a brute-force search in plain loops, and what training makes of them."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import cse.training.mining as mining
from cse.data.store import GROUP, TRAIN_FILE, PreparedData, open_rows, write_rows
from cse.data.tasks.store import TEST, open_dev, open_tasks, write_tasks
from cse.model.sentence_encoder import SentenceEncoder
from cse.stages.mine import mine_stage
from cse.training.mining import NONE, mine, mutual_neighbours, read_pairs
from tests.cli.workspace import contents
from tests.parts import refusal
from tests.stages.training import train_in
from tests.tiny import write_report

ANCHORS = ["a0", "a1", "a0", "b0", "c0", "p3", "a1"]
POSITIVES = ["p0", "p1", "p2", "p3", "p4", "b0", "a1"]
GROUPS = ["a", "a", "b", "b", "c", "b", "a"]


def unit(rng, count: int, width: int = 4) -> np.ndarray:
    vectors = rng.normal(size=(count, width)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def naive(anchors, positives, groups, vector, margin, asked=None) -> list[str | None]:
    """The rule in words: nearest first, then margin, groups, partners and equal texts."""
    asked = asked or vector  # of the anchors
    found: list[str | None] = []
    for anchor, positive in zip(anchors, positives, strict=True):
        foreign = []
        own = {groups[i] for i in range(len(anchors)) if anchor in (anchors[i], positives[i])} if groups else set()
        for text in dict.fromkeys(positives):
            rows = [i for i in range(len(anchors)) if text in (anchors[i], positives[i])]
            paired = any(anchor in (anchors[i], positives[i]) for i in rows)
            related = groups is not None and any(groups[i] in own for i in rows)
            if text != anchor and not paired and not related:
                foreign.append(text)
        foreign.sort(key=lambda text: -float(asked[anchor] @ vector[text]))
        limit = margin * float(asked[anchor] @ vector[positive])
        found.append(next((t for t in foreign if float(asked[anchor] @ vector[t]) <= limit), None))
    return found


@pytest.mark.parametrize("cells", [1 << 24, 30], ids=["one block", "blocks"])
@pytest.mark.parametrize("margin", [0.7, 0.95, 1.0])
@pytest.mark.parametrize("grouped", [True, False])
def test_negatives_are_those_of_a_brute_force_search(margin, grouped, cells, monkeypatch):
    monkeypatch.setattr(mining, "CELLS", cells)
    rng = np.random.default_rng(3)
    anchors = ANCHORS + [f"q{i % 20}" for i in range(34)]
    positives = POSITIVES + [f"r{i}" for i in range(34)]
    groups = [*GROUPS, *(f"g{i % 5}" for i in range(34))] if grouped else None
    pairs = read_pairs(anchors, positives, groups)
    vectors = unit(rng, len(pairs.texts))
    for row in range(len(anchors)):  # positives are near, or no negative would pass the margin
        text = vectors[pairs.positive_R[row]] + 2 * vectors[pairs.anchor_R[row]]
        vectors[pairs.positive_R[row]] = text / np.linalg.norm(text)
    vector = dict(zip(pairs.texts, vectors, strict=True))
    chosen = mine(pairs, vectors, vectors, margin)
    expected = naive(anchors, positives, groups, vector, margin)
    assert [None if c == NONE else pairs.texts[c] for c in chosen] == expected
    assert len({*expected} - {None}) > 5


def test_no_text_of_another_label_of_the_anchor_is_its_negative():
    """The text "Card lost" is of the labels a and b, once spelled otherwise; only the texts of c are negatives."""
    anchors, positives = ["Card lost", "card lost!", "p0", "x"], ["p0", "P1", "p2", "p3"]
    pairs = read_pairs(anchors, positives, ["a", "b", "b", "c"])
    cosine = {"Card lost": 1.0, "card lost!": 1.0, "p0": 0.9, "P1": 0.85, "p2": 0.8, "p3": 0.3, "x": 0.0}
    vectors = np.array([[cosine[text], np.sqrt(1 - cosine[text] ** 2)] for text in pairs.texts], np.float32)
    chosen = mine(pairs, vectors, vectors, 1.0)
    assert [pairs.texts[number] for number in chosen[:2]] == ["p3", "p3"]
    # without groups: what stands in a row with it in any spelling, and itself in any spelling
    pairs = read_pairs(["Card lost", "card lost!", "x"], ["p0", "P1", "CARD LOST"], None)
    assert [[pairs.texts[number] for number in barred] for barred in pairs.barred_R[:2]] == [
        ["p0", "P1", "CARD LOST"]
    ] * 2


@pytest.fixture
def pairs_of_labels(data, tmp_path):
    """Prepared pairs with a group, out of the words of the other rows, with their dev pairs."""
    source = PreparedData(data["triplets"])
    columns = (source.train[name].to_pylist() for name in ("sent0", "sent1"))
    rows = list(zip(*columns, [str(i % 5) for i in range(24)], strict=True))
    folder = tmp_path / "prepared"
    folder.mkdir()
    write_rows(folder / TRAIN_FILE, "pairs", rows, grouped=True)
    write_tasks(folder, dev=open_dev(source), test=open_tasks(source, TEST))
    write_report(folder, "pairs", len(rows))
    return folder


MINE = {"data.view": "pairs", "mine.negatives": 1}


ROLES = {"backbone.texts": {"query": "old rain ", "passage": "the "}, "train.roles": ["query", "passage", "passage"]}


@pytest.mark.parametrize("roles", [{}, ROLES], ids=["", "roles"])
def test_pairs_become_triplets_of_the_bare_backbone(settings, pairs_of_labels, models, tmp_path, capsys, roles):
    """Task texts go before the texts that they are for."""
    for name in ("one", "two"):
        mine_stage(settings(MINE | roles), prepared=pairs_of_labels, mined=tmp_path / name)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    before, found = open_rows(pairs_of_labels / TRAIN_FILE), open_rows(tmp_path / "one" / TRAIN_FILE)
    assert found.column_names == ["sent0", "sent1", "hard_neg", GROUP]
    rows = [before[name].to_pylist() for name in ("sent0", "sent1", GROUP)]
    texts, encoder = list(dict.fromkeys([*rows[0], *rows[1]])), SentenceEncoder.load(str(models["bert"]))
    asked, vector = (
        dict(zip(texts, encoder.encode([task + text for text in texts]), strict=True))
        for task in (("old rain ", "the ") if roles else ("", ""))
    )
    expected = naive(*rows, vector, 0.95, asked)
    assert found["hard_neg"].to_pylist() == [text for text in expected if text is not None]
    assert not roles or expected != naive(*rows, vector, 0.95)
    dropped = expected.count(None)
    assert 0 < dropped < 20
    assert f"; {dropped} pairs without one were dropped" in capsys.readouterr().out


def test_rows_mined_with_another_model_of_the_same_name_are_refused(settings, pairs_of_labels, models, tmp_path):
    local, mined = tmp_path / "model", tmp_path / "mined"
    shutil.copytree(models["bert"], local)
    chosen = settings(MINE | {"backbone.name": str(local)})
    mine_stage(chosen, prepared=pairs_of_labels, mined=mined)
    assert train_in(tmp_path, chosen, pairs_of_labels, mined=mined)["steps"] > 0
    weights = load_file(local / "model.safetensors")
    save_file({name: 1.001 * tensor for name, tensor in weights.items()}, local / "model.safetensors")
    said = refusal(train_in, tmp_path, chosen, pairs_of_labels, mined=mined)
    assert "model holds another model than the one that mined the rows; run `cse" in said


def test_triplets_of_other_settings_or_pairs_and_none_at_all_are_refused(settings, pairs_of_labels, tmp_path):
    mined = tmp_path / "mined"

    def said(changes):
        return refusal(train_in, tmp_path, settings(MINE | changes), pairs_of_labels, mined=mined)

    assert "mined: nothing mined, but the settings ask for it" in said({})
    mine_stage(settings({"data.view": "pairs"}), prepared=pairs_of_labels, mined=mined)
    assert json.loads((mined / "manifest.json").read_text())["negatives"] == 0, "nothing was asked for"
    assert "mined: nothing mined, but the settings ask for it" in said({})
    mine_stage(settings(MINE), prepared=pairs_of_labels, mined=mined)
    for key, value in {"mine.margin": 0.9, "pooler.kind": "cls"}.items():
        assert f"mined with other settings ({key.split('.')[0]}) than this training's; run" in said({key: value})
    write_rows(pairs_of_labels / TRAIN_FILE, "pairs", [("a b", "c d", "x")] * 3, grouped=True)
    assert "mined: mined from other rows than this training's" in said({})


def test_rows_that_are_no_pairs_or_keep_no_negative_are_refused(settings, data, pairs_of_labels, tmp_path):
    for changes, rows, said in (
        (MINE | {"mine.margin": 1e-6}, pairs_of_labels, "no pair keeps a hard negative; raise mine.margin"),
        (MINE, data["triplets"], "contains triplets, but mine.negatives needs pairs"),
        (
            MINE | ROLES | {"train.roles": ["query", "passage"]},
            pairs_of_labels,
            "train.roles: 2 roles for 3 columns of",
        ),
        (NEIGHBOURS, data["triplets"], "contains triplets, but mine.neighbours needs sentences"),
    ):
        assert said in refusal(mine_stage, settings(changes), prepared=rows, mined=tmp_path / "mined")
    assert not (tmp_path / "mined").exists()


NEIGHBOURS = {"data.view": "sentences", "mine.neighbours": 2}


def test_sentences_become_pairs_of_neighbours(settings, data, models, tmp_path):
    mine_stage(settings(NEIGHBOURS), prepared=data["sentences"], mined=tmp_path / "mined")
    sentences = list(dict.fromkeys(PreparedData(data["sentences"]).train["sent0"].to_pylist()))
    expected = mutual_neighbours(SentenceEncoder.load(str(models["bert"])).encode(sentences), 2)
    found = open_rows(tmp_path / "mined" / TRAIN_FILE)
    assert found["sent0"].to_pylist() == [sentences[first] for first, _ in expected]
    assert found["sent1"].to_pylist() == [sentences[second] for _, second in expected]
    facts = train_in(tmp_path, settings(NEIGHBOURS), data["sentences"], mined=tmp_path / "mined")
    assert facts["trained_on"].endswith(f"{len(expected)} pairs")
