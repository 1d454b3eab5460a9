"""Stages over several sources: what a checkpoint says of them, what names a run, and mistakes in one line."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from cse.data.store import PreparedData, source_file, write_rows
from cse.model.checkpoint import read_config
from cse.stages.prepare import prepare_stage
from cse.training.ready import open_training
from tests.parts import refusal
from tests.rows import write_table
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


def curve(folder):
    with (folder / "plots/train.csv").open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def opened(settings, tmp_path):
    return open_training(settings, tmp_path / "prepared", scratch=tmp_path)


def test_domain_sentences_with_triplets_that_have_a_hinge(run, several, files, tmp_path):
    """Six batches of the sentences and three of the triplets, twice."""
    results = run(several(source(files, "triplets", weight=0.5, terms={"energy_hinge": 5.0})))
    assert results["steps"] == 2 * (6 + 3)
    assert results["trained_on"] == "sentences.csv, 41 sentences + triplets.csv, 19 triplets"
    facts = read_config(tmp_path / "run/checkpoint")["facts"]
    kept = {"name": "the-triplets", "view": "triplets", "weight": 0.5, "terms": {"energy_hinge": 5.0}}
    assert facts["settings"]["data"] == {"more": [kept]}
    lines = curve(tmp_path / "run")
    assert list(lines[0]) == ["step", "nt_xent", "energy_hinge", "loss", "learning_rate"]
    assert 0 < sum(line["energy_hinge"] != "" for line in lines) < len(lines) == 4


def test_a_run_is_named_by_all_it_trains_on(several, files, tmp_path):
    nli = source(files, "triplets")
    prepare_stage(several(nli), prepared=tmp_path / "prepared", progress=False)

    def name(*more):
        return opened(several(*more), tmp_path).folder.path.name

    others = {name(nli | {"weight": 2.0}), name(nli | {"terms": {"nt_xent": 2.0}}), name()}
    assert len({name(nli), *others}) == 4
    assert name(nli | {"path": "elsewhere.csv", "max_rows": 5}) == (before := name(nli)), "the rows themselves count"
    write_rows(tmp_path / "prepared" / source_file("the-triplets"), "triplets", [("a", "b", "c"), ("d", "e", "f")])
    assert name(nli) not in {before, *others}


def test_roles_go_by_the_place_of_a_column(several, files, tmp_path):
    texts = {"backbone.texts": {"query": "q: ", "passage": "p: "}}
    settings = several(source(files, "pairs"), **texts, **{"train.roles": ["query", "passage"]})
    prepare_stage(settings, prepared=tmp_path / "prepared", progress=False)
    training = opened(settings, tmp_path)
    sentences, pairs = training.tables()
    tokenizer = training.encoder.tokenizer
    row = training.data.of("the-pairs").train.to_pylist()[0]
    expected = [tokenizer.encode(text).ids[:12] for text in ("q: " + row["sent0"], "p: " + row["sent1"])]
    assert [column.ids[: column.starts[1]].tolist() for column in pairs.columns] == expected
    first = tokenizer.encode("q: " + training.data.train["sent0"][0].as_py()).ids[:12]
    assert sentences.columns[0].ids[: sentences.columns[0].starts[1]].tolist() == first


def test_word_vectors_are_those_of_all_sources(several, files, models, tmp_path):
    changes = {"backbone.name": str(models["words"]), "train.parameters": "none", "prompt.kind": "none"}
    settings = several(source(files, "pairs"), **changes)
    prepare_stage(settings, prepared=tmp_path / "prepared", progress=False)
    data = PreparedData(tmp_path / "prepared")
    words = {word for row in data.of("the-pairs").train.to_pylist() for text in row.values() for word in text.split()}
    assert all(opened(settings, tmp_path).encoder.tokenizer.token_to_id(word) is not None for word in words)


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
