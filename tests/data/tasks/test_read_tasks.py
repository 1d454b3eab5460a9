"""A user's own task, recognised by its layout and its columns; every mistake in one line with its place."""

import gzip
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from cse.data.documents import read_documents
from cse.data.store import PreparedData
from cse.data.tasks.beir import write_beir as write_again
from cse.data.tasks.kinds import content_of, describe, kind_of
from cse.data.tasks.read import Reading, read_task, read_tasks
from cse.data.tasks.store import open_dev, write_tasks
from tests.data.tasks.files import TREC, write_beir, write_labelled
from tests.parts import refusal
from tests.rows import write_lines

PAIRS = ["sentence1,sentence2,label", "a cat,the cat,1", "a cat,a dog,FALSE", "x,y,true", "x,z,0"]


def test_a_query_that_is_a_document_by_id_and_text(tmp_path):
    """q1 has d's text behind its title; q2 only an id that a document has; q3 only a text."""
    texts = {"q1": "They nest on roofs.", "q2": "machines", "q3": "A pump moves water."}
    documents = [("d1", "", texts["q3"]), ("q2", "", "machines of iron"), ("q1", "Storks", texts["q1"])]
    task = read_task(write_beir(
        tmp_path / "birds",
        queries=[{"_id": key, "text": text} for key, text in texts.items()],
        corpus=[{"_id": key, "title": title, "text": text} for key, title, text in documents],
        test=[("q1", "d1", 1), ("q2", "d1", 1), ("q3", "q1", 1)],
    ))  # fmt: skip
    assert task.own.tolist() == [2, -1, -1]
    assert describe(task).endswith("in qrels/test.tsv, 1 queries are documents, which they do not find")
    write_tasks(tmp_path, dev=task)
    kept = open_dev(PreparedData(tmp_path))
    assert kept.own.tolist() == [2, -1, -1]
    assert content_of(kept) == content_of(task) != content_of(replace(task, own=None))


JUDGED = TREC["qrels/test.tsv"]


@pytest.mark.parametrize(
    ("changes", "lines", "left"),
    [
        ({"corpus": [{"_id": "d0", "text": None}, *TREC["corpus.jsonl"]], "test": [*JUDGED, ("q2", "d0", 1)]}, None,
         ", 1 documents without text left out, 1 judgements of queries or documents that are not there"),
        ({"test": [*JUDGED, ("q1", "d9", 1), ("q9", "d1", 1)]}, None,
         ", 2 judgements of queries or documents that are not there"),
        ({"queries": [*TREC["queries.jsonl"], {"_id": "q0", "text": ""}], "test": [*JUDGED, ("q0", "d1", 1)]}, None,
         ", 1 judgements of queries or documents that are not there"),
        ({"test": [(query, document, f"{grade}.0") for query, document, grade in JUDGED]}, None, ""),
        ({}, [f"{query}\t{document}\t{grade}" for query, document, grade in JUDGED], ""),
        ({}, [f"{query} 0 {document} {grade}" for query, document, grade in JUDGED], ""),
        ({}, ["", *(f"{query}\tQ0\t{document}\t{grade}" for query, document, grade in JUDGED)], ""),
        ({}, ['"query-id"\t"corpus-id"\t"score"', *(f'"{q}"\t"{d}"\t"{g}"\t' for q, d, g in JUDGED)], ""),
        ({}, ["query-id,corpus-id,score", *(f"{query},{document},{grade}" for query, document, grade in JUDGED)], ""),
        ({"corpus": [*TREC["corpus.jsonl"], {"_id": "d0", "title": "-", "text": "N/A"}]}, None,
         ", 1 documents without text left out"),
        ({name: [{"id": row.pop("_id"), **row} for row in map(dict, TREC[f"{name}.jsonl"])]
          for name in ("corpus", "queries")}, None, ""),
    ],
)  # fmt: skip
def test_a_collection_as_it_is_published(tmp_path, changes, lines, left):
    folder = write_beir(tmp_path / "birds", **changes)
    if lines:
        write_lines(folder / "qrels/test.tsv", lines)
    task = read_task(folder)
    assert task.queries == ["birds that wait", "machines"]
    assert task.documents == ["Herons wait in shallow water.", "Storks They nest on roofs.", "A pump moves water."]
    judged = np.array([task.query, task.document, task.relevance]).T
    assert judged[task.document >= 0].tolist() == [[0, 0, 2], [0, 1, 1], [1, 2, 1]]
    assert describe(task) == f"retrieval: 2 queries, 3 documents, 3 judgements in qrels/test.tsv{left}"
    write_tasks(tmp_path, dev=task)
    assert describe(open_dev(PreparedData(tmp_path))) == describe(task)


def test_a_relevant_document_that_is_not_there_is_one_that_no_search_finds(tmp_path):
    queries = [*TREC["queries.jsonl"], {"_id": "q3", "text": "lost"}]
    judged = [*JUDGED, ("q1", "d9", 2), ("q1", "d8", 0), ("q3", "d9", 1)]
    task = read_task(write_beir(tmp_path / "birds", queries=queries, test=judged))
    assert (task.queries[2], task.unknown) == ("lost", 3)
    write_again(task, tmp_path / "again")
    for one in (task, read_task(tmp_path / "again")):
        rows = np.array([one.query, one.document, one.relevance]).T.tolist()
        assert sorted(rows) == [[0, -1, 2], [0, 0, 2], [0, 1, 1], [1, 2, 1], [2, -1, 1]]


def test_queries_of_other_splits_are_left_out_and_counted_in_a_collection_that_is_gzipped(tmp_path):
    queries = [{"_id": f"q{i}", "text": f"query {i}"} for i in (3, 2, 1)]
    folder = write_beir(tmp_path / "birds", queries=queries)
    write_lines(folder / "qrels/train.tsv", ["query-id\tcorpus-id\tscore", "q3\td1\t1"])
    for path in (folder / "corpus.jsonl", folder / "queries.jsonl"):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert len(list(read_documents(folder))) == 3
    task = read_task(folder)
    assert (task.queries, task.left_out) == (["query 2", "query 1"], 1)
    assert describe(task).endswith("in qrels/test.tsv, 1 queries without a relevant document left out")
    assert np.array([task.query, task.document]).T.tolist() == [[1, 0], [1, 1], [0, 2]]
    (folder / "qrels/test.tsv").rename(folder / "qrels/dev.tsv")
    assert read_task(folder).judged_in == "qrels/dev.tsv"
    (folder / "qrels/dev.tsv").rename(folder / "qrels/a.tsv")
    assert "qrels: several files (a.tsv, train.tsv); name one test.tsv" in refusal(read_task, folder)


def test_one_file_of_labelled_texts_is_split_by_label_and_always_alike(tmp_path):
    rows = [f"text {i},{label}" for i, label in enumerate("aaaaabbbbcc")]  # 5, 4 and 2 of a label
    task = read_task(write_lines(tmp_path / "own.csv", ["text,label", *rows]))
    assert Counter(task.reference_label) == {"a": 2, "b": 2, "c": 1}
    assert sorted([*task.reference, *task.test]) == sorted(f"text {i}" for i in range(11))
    assert task == read_task(tmp_path / "own.csv")
    assert describe(task).endswith("5 reference and 6 test rows, halves of one file, drawn by label with a fixed seed")


def test_test_rows_that_are_reference_rows_are_counted(tmp_path):
    write_lines(tmp_path / "own/train.csv", ["text,label", "one,a", "two,b", "three,b"])
    write_lines(tmp_path / "own/test.csv", ["text,label", "two,b", "four,a", "one,a"])
    assert describe(read_task(tmp_path / "own")).endswith("3 test rows, 2 of which are reference rows, too")


def test_copies_of_a_text_are_in_one_half(tmp_path):
    rows = [f"text {'abcdefghijk'[i]},{label}" for i, label in enumerate("aaaaabbbbcc")]
    once = read_task(write_lines(tmp_path / "once.csv", ["text,label", *rows]))
    again = [f"{row[0].upper()}{row[1:-2]}!{row[-2:]}" for row in rows]
    task = read_task(write_lines(tmp_path / "own.csv", ["text,label", *rows, *again]))
    assert (len(task.reference), len(task.test)) == (2 * len(once.reference), 2 * len(once.test))
    assert ({*once.reference} <= {*task.reference}, {*once.test} <= {*task.test}) == (True, True)
    assert "b.csv:2: the only text with the label 'a'" in refusal(
        read_task, write_lines(tmp_path / "b.csv", ["text,label", "one,a", "One!,a", "two,b", "three,b"])
    )


def test_a_folder_of_several_tasks(tmp_path):
    write_lines(tmp_path / "README.md", ["which tasks these are"])
    write_beir(tmp_path / "birds")
    write_labelled(tmp_path / "bank")
    write_lines(tmp_path / "quora.csv", PAIRS)
    assert [(task.name, kind_of(task)) for task in read_tasks(tmp_path)] == [
        ("bank", "labelled texts"), ("birds", "retrieval"), ("quora", "binary pairs"),
    ]  # fmt: skip
    write_lines(tmp_path / "bank.csv", PAIRS)
    assert "tasks: two are called bank; rename a file or folder" in refusal(read_tasks, tmp_path)
    (tmp_path / "empty").mkdir()
    assert read_tasks(tmp_path / "empty") == []


def test_columns_of_labelled_texts_may_have_any_name(tmp_path):
    lines = ["utterance;scenario;label", "a;x;1", "b;x;2", "c;y;3", "d;y;4", "e;y;5"]
    for name in ("train", "test"):
        write_lines(tmp_path / f"own/{name}.csv", lines)
    for path in (tmp_path / "own", tmp_path / "own/test.csv"):
        task = read_task(path, Reading(labelled=("utterance", "scenario")))
        assert (set(task.test_label), "a" in [*task.reference, *task.test]) == ({"x", "y"}, True)
    said = refusal(read_task, tmp_path / "own", Reading(labelled=("txt", "scenario")))
    assert "no column 'txt' (data.columns)" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"test": [("q1", "d9", 1), ("q2", "d1", 1)]},
         "test.tsv: 1 of 2 queries with a relevant document (1 of 2 judgements are of ids that are not there)"),
        ({"test": [("q1", "d1", 1)]}, "test.tsv: 1 of 2 queries with a relevant document; a task needs at least 2"),
        ({"test": [("q1", "d1", 1), ("q1", "d1", 2)]}, "test.tsv:3: score 2, but 1 in line 2; keep one of them"),
        ({"test": [("q1", "d1", "high")]}, "test.tsv:2: score 'high' is not a whole number; correct it"),
        ({"test": [("q1", 0, 0, "d1", 1)]}, "test.tsv:2: 5 fields; give query-id, corpus-id, score, tabs between"),
        ({"test": []}, "test.tsv: no rows"),
        ({"corpus": [{"_id": "d1", "title": "", "text": " "}]}, "corpus.jsonl: no rows; add rows"),
        ({"corpus": [{"_id": "d1", "title": "", "text": "a"}] * 2}, "corpus.jsonl:2: id 'd1' is that of line 1; give"),
        ({"corpus": [{"_id": None, "title": "", "text": "a"}]}, "corpus.jsonl:1: no id; give each line its own _id"),
        ({"queries": [{"key": "q1", "text": "a"}]}, "queries.jsonl: no column '_id' (BEIR's layout)"),
    ],
)  # fmt: skip
def test_a_broken_collection_is_refused_in_one_line(tmp_path, changes, said):
    assert said in refusal(read_task, write_beir(tmp_path / "birds", **changes))


def test_a_layout_that_is_not_whole(tmp_path):
    folder = write_beir(tmp_path / "birds")
    (folder / "queries.jsonl").unlink()
    assert "birds: has corpus.jsonl but no queries.jsonl; a retrieval task needs" in refusal(read_task, folder)
    folder = write_labelled(tmp_path / "bank")
    write_lines(folder / "dev.csv", ["text,category"])
    assert "bank/dev.csv: beside train.* and test.* of labelled texts; move it" in refusal(read_task, folder)
    folder = write_labelled(tmp_path / "other", test=[("a", "card"), ("b", "loan")])
    assert "test.csv:3: label 'loan' has no reference row in train.csv; add some there" in refusal(read_task, folder)
    assert "ban: no such file or folder; did you mean 'bank'" in refusal(read_task, tmp_path / "ban")
