"""Stages over several sources and over pairs mined from sentences: what a checkpoint says of them, what names a run."""

import csv

import numpy as np
import pytest

from cse.data.store import PreparedData, source_file, write_rows
from cse.model import neighbours
from cse.model.checkpoint import read_config
from cse.model.neighbours import mutual_neighbours
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.encode import unit_rows
from cse.stages.prepare import prepare_stage
from cse.training.ready import open_training
from tests.parts import refusal
from tests.rows import write_lines, write_table
from tests.stages.training import train_in
from tests.tiny import WORDS

HINGE = "objective.energy_hinge.weight"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """41 sentences, 19 triplets, 12 pairs, and 5 dev pairs."""
    folder, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(3)
    heads = {"sentences": ("text",), "triplets": ("sent0", "sent1", "hard_neg"), "pairs": ("sent0", "sent1")}
    for (name, head), count in zip(heads.items(), (41, 19, 12), strict=True):
        rows = [[" ".join(rng.choice(WORDS, 4, replace=False)) for _ in head] for _ in range(count)]
        write_table(folder / f"{name}.csv", head, rows)
    dev = [(*rng.choice(WORDS, 2, replace=False), score) for score in range(5)]
    write_table(folder / "dev.csv", ("sentence1", "sentence2", "score"), dev)
    return folder


def source(files, view, **more):
    return {"name": f"the-{view}", "path": str(files / f"{view}.csv"), "view": view} | more


@pytest.fixture
def several(settings, files):
    """Settings with these further sources beside the sentences."""

    def make(*more, **changes):
        given = {"data.source": "files", "data.train_path": str(files / "sentences.csv"), "data.more": list(more)}
        paths = {"data.dev_path": str(files / "dev.csv"), "data.evaluation_path": str(files / "dev.csv")}
        return settings(given | paths | changes)

    return make


@pytest.fixture
def run(tmp_path):
    def call(settings, name="run", prepare=True):
        if prepare:
            prepare_stage(settings, prepared=tmp_path / "prepared", progress=False)
        return train_in(tmp_path / name, settings, tmp_path / "prepared", scratch=tmp_path / "scratch")

    return call


@pytest.fixture
def opened(tmp_path):
    """Prepare if that was not done, and open a training."""

    def call(settings):
        if not (tmp_path / "prepared").exists():
            prepare_stage(settings, prepared=tmp_path / "prepared", progress=False)
        return open_training(settings, tmp_path / "prepared", scratch=tmp_path)

    return call


def test_domain_sentences_with_triplets_that_have_a_hinge(run, several, files, tmp_path):
    """Six batches of the sentences and three of the triplets, twice."""
    results = run(several(source(files, "triplets", weight=0.5, terms={"energy_hinge": 5.0})))
    assert results["steps"] == 2 * (6 + 3)
    assert results["trained_on"] == "sentences.csv, 41 sentences + triplets.csv, 19 triplets"
    facts = read_config(tmp_path / "run/checkpoint")["facts"]
    kept = {"name": "the-triplets", "view": "triplets", "weight": 0.5, "terms": {"energy_hinge": 5.0}}
    assert facts["settings"]["data"] == {"more": [kept]}
    lines = [*csv.DictReader((tmp_path / "run/plots/train.csv").read_text(encoding="utf-8").splitlines())]
    assert list(lines[0]) == ["step", "nt_xent", "energy_hinge", "loss", "learning_rate"]
    assert 0 < sum(line["energy_hinge"] != "" for line in lines) < len(lines) == 4


def test_a_run_is_named_by_all_it_trains_on(several, files, opened, tmp_path):
    nli = source(files, "triplets")

    def name(*more):
        return opened(several(*more)).folder.path.name

    before = name(nli)
    others = {name(nli | {"weight": 2.0}), name(nli | {"terms": {"nt_xent": 2.0}}), name()}
    assert len({before, *others}) == 4
    assert name(nli | {"path": "elsewhere.csv", "max_rows": 5}) == before, "the rows themselves count"
    write_rows(tmp_path / "prepared" / source_file("the-triplets"), "triplets", [("a", "b", "c"), ("d", "e", "f")])
    assert name(nli) not in {before, *others}


def test_roles_go_by_the_place_of_a_column(several, files, opened):
    texts = {"backbone.texts": {"query": "q: ", "passage": "p: "}}
    training = opened(several(source(files, "pairs"), **texts, **{"train.roles": ["query", "passage"]}))
    sentences, pairs = training.tables()
    row = training.data.of("the-pairs").train.to_pylist()[0]
    read = [f"q: {training.data.train['sent0'][0]}", f"q: {row['sent0']}", f"p: {row['sent1']}"]
    for column, text in zip([sentences.columns[0], *pairs.columns], read, strict=True):
        assert column.ids[: column.starts[1]].tolist() == training.encoder.tokenizer.encode(text).ids[:12]


def test_word_vectors_are_those_of_all_sources(several, files, models, opened):
    changes = {"backbone.name": str(models["words"]), "train.parameters": "none", "prompt.kind": "none"}
    training = opened(several(source(files, "pairs"), **changes))
    rows = training.data.of("the-pairs").train.to_pylist()
    words = {word for row in rows for text in row.values() for word in text.split()}
    assert all(training.encoder.tokenizer.token_to_id(word) is not None for word in words)


def test_a_source_that_was_not_prepared_or_from_another_view_or_with_too_few_rows(run, several, files):
    run(several(source(files, "triplets")))
    for settings, prepare, said in (
        (several(source(files, "pairs")), False, "train-the-pairs.arrow: no such file; run `cse prepare`"),
        (several(source(files, "triplets") | {"view": "pairs"}), False, "contains triplets, not pairs; run `cse prep"),
        (several(source(files, "pairs", max_rows=1)), True, "data.more.the-pairs: contains 1 row, but objective.nt_xe"),
    ):
        assert said in refusal(run, settings, prepare=prepare)


UNFIT = [
    ("data.more.the-pairs: holds pairs, but objective.energy_hinge needs hard negatives; set its terms: ",
     {HINGE: 1.0, "data.view": "triplets"}, {}),
    ("data.more.the-pairs.terms: no term 'hinge'; the terms are nt_xent, matryoshka, energy_hinge, ",
     {}, {"terms": {"hinge": 0}}),
    ("data.more.0.columns: view 'pairs' needs 2 column names, 1 given", {}, {"columns": ["a"]}),
    ("data.more.0.lines: unknown key", {}, {"lines": 3}),
    ("data.more: further sources need data.source: files, found 'sample'", {"data.source": "sample"}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("problem", "changes", "more"), UNFIT)
def test_settings_that_cannot_work(several, files, problem, changes, more):
    assert problem in refusal(several, source(files, "pairs") | more, **changes)


# ---- pairs of sentences that are each other's nearest ---------------------------------------------------------------


@pytest.mark.parametrize(("nearest", "cells"), [(1, 1 << 24), (3, 120), (36, 120)])
def test_pairs_are_mutual_neighbours(monkeypatch, nearest, cells):
    monkeypatch.setattr(neighbours, "CELLS", cells)
    vectors = unit_rows(np.random.default_rng(3).normal(size=(37, 5)).astype(np.float32))
    cosine = vectors @ vectors.T - 3 * np.eye(37, dtype=np.float32)
    near = [{*row[:nearest].tolist()} for row in np.argsort(-cosine, axis=1)]
    expected = [[i, j] for i in range(37) for j in range(i + 1, 37) if j in near[i] and i in near[j]]
    assert mutual_neighbours(vectors, nearest).tolist() == expected and len(expected) > 5
    assert mutual_neighbours(vectors[:3], 10).tolist() == [[0, 1], [0, 2], [1, 2]]
    assert mutual_neighbours(vectors[:1], 10).shape == (0, 2)


def test_sentences_are_prepared_as_pairs_and_trained_on(settings, models, tmp_path, capsys):
    rng = np.random.default_rng(1)
    sentences = list(dict.fromkeys(" ".join(rng.choice(WORDS, 4)) for _ in range(40)))
    path = write_lines(tmp_path / "s.txt", sentences)
    files = {"data.source": "files", "data.dev": "own", "data.train_path": str(path)}
    wanted = settings(files | {"mine.neighbours": 2})
    prepare_stage(settings(files), prepared=tmp_path / "plain", progress=False)
    said = refusal(train_in, tmp_path, wanted, tmp_path / "plain")
    assert "plain: contains sentences, but mine.neighbours asks for pairs; run `cse prepare`" in said
    prepare_stage(wanted, prepared=tmp_path / "prepared", progress=False)
    rows = PreparedData(tmp_path / "prepared").train.to_pylist()
    expected = mutual_neighbours(SentenceEncoder.load(str(models["bert"])).encode(sentences), 2)
    assert [[row["sent0"], row["sent1"]] for row in rows] == [[sentences[n] for n in pair] for pair in expected]
    assert f"pairs     {len(expected)} of sentences that are among" in capsys.readouterr().out
    assert train_in(tmp_path, wanted, tmp_path / "prepared")["trained_on"].endswith(f"{len(expected)} pairs")
