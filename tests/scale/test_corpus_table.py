"""`cse index` and `cse search`: what the index finds against numpy, what it holds, how it changes, what it refuses."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cse.cli import main
from cse.errors import CseError
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.seal import sealed
from cse.scale.corpus import database, index
from cse.scale.corpus import table as module
from cse.scale.corpus.embed import embed_corpus
from cse.scale.corpus.index import build_table, update_table
from cse.scale.corpus.output import check_vectors, open_vectors
from cse.scale.corpus.table import open_table
from cse.search import hybrid
from cse.search.words import Words
from tests.cli.conftest import cse  # noqa: F401 - a fixture
from tests.deploy.bundles import write_bundle
from tests.scale.corpora import choices, read_vectors, sentences, shards, write_jsonl, write_parquet, write_txt

QUERIES = ["the cat sat", "dog", "a mat"]
ROWS = [
    {
        "id": f"k{n}",
        "text": text,
        "year": 2000 + n,
        "queue": ["billing", "cards"][n % 2],
        "paid": n % 3 == 0,
        "more": 1.5,
    }
    for n, text in enumerate(["the cat", "dog", "a mat the cat sat on", "of", *sentences(40, seed=4)])
]
KEPT = [part for name in ("year", "queue", "paid", "more") for part in ("--keep-column", name)]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Do not change it: the index of ``vectors`` is made once for all tests."""
    return write_bundle(tmp_path_factory.mktemp("corpora") / "bundle")


@pytest.fixture
def embed(cse, bundle, tmp_path, monkeypatch):  # noqa: F811
    """`cse embed` of rows without Ray, ten rows a shard, with ids and text; returns the folder."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def run(rows, name, *options, model=bundle, text="--keep-text"):
        corpus = write_jsonl(tmp_path / f"{name}.jsonl", rows)
        done = cse(
            "embed", corpus, "--out", tmp_path / name, "--model", model, "--workers", 0, "--shard-rows", 10,
            "--provider", "cpu", "--id-column", "id", *([text] if text else []), *options,
        )  # fmt: skip
        assert done.code == 0, done.err
        return tmp_path / name

    return run


@pytest.fixture
def vectors(cse, embed, bundle, tmp_path):  # noqa: F811
    """A folder with an index, of vectors that are not of unit length."""
    folder, made = tmp_path / "vectors", bundle.with_name("vectors")
    if not made.exists():
        embed(ROWS, "vectors", "--raw", *KEPT)
        assert cse("index", folder).err == f"{folder}: an exact index of 44 vectors and their words\n"
        shutil.copytree(folder, made)
        shutil.rmtree(folder)
    return shutil.copytree(made, folder)


def answers(cse, folder, *options, queries=QUERIES):  # noqa: F811
    done = cse("search", folder, *queries, "--json", "--provider", "cpu", *options)
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def cosines(vectors, bundle, queries=QUERIES):
    """Cosines (q, n) of the queries with all rows."""
    _, rows, _ = read_vectors(vectors)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return OnnxEncoder(bundle, provider="cpu").encode(queries, normalize=True) @ unit.T


# ---- what is found ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["exact", "approximate"])
def test_vectors_find_what_numpy_finds(cse, embed, bundle, kind):  # noqa: F811
    folder = embed([{**row, "id": f"k{n}"} for n, row in enumerate(ROWS * 8)], "vectors", "--raw", "--shard-rows", 100)
    assert f"{kind} index of 352 vectors" in cse("index", folder, "--kind", kind).err
    expected = cosines(folder, bundle)
    for number, answer in enumerate(answers(cse, folder, "--mode", "vectors", "-k", 5)):
        hits = answer["hits"]
        assert (answer["query"], answer["mode"]) == (QUERIES[number], "vectors")
        assert [hit["rank"] for hit in hits] == [1, 2, 3, 4, 5]
        best = np.sort(expected[number])[::-1][:5]
        np.testing.assert_allclose([hit["cosine"] for hit in hits], best, atol=2e-6)
        assert [hit["score"] for hit in hits] == [hit["cosine"] for hit in hits]
        for hit in hits:
            assert hit["text"] == ROWS[int(hit["id"][1:]) % len(ROWS)]["text"]


def test_of_equal_cosines_the_earlier_row_comes_first(cse, vectors, bundle):  # noqa: F811
    (answer,) = answers(cse, vectors, "--mode", "vectors", "-k", 44, queries=["the cat"])
    found = [(-round(hit["cosine"], 5), int(hit["id"][1:])) for hit in answer["hits"]]
    assert found == sorted(found)
    assert len({cosine for cosine, _ in found}) < 44, "some are equal"


def test_words_rank_by_bm25_and_need_no_model(cse, embed, bundle, tmp_path):  # noqa: F811
    model = shutil.copytree(bundle, tmp_path / "model")
    folder = embed(ROWS, "words", "--index", model=model)
    shutil.rmtree(model)
    (answer,) = answers(cse, folder, "--mode", "words", "-k", 44, queries=["The dogs, MAT"])
    expected = next(Words([row["text"] for row in ROWS]).scores(["The dogs, MAT"]))  # the words of measures
    assert [hit["bm25"] for hit in answer["hits"]] == pytest.approx(sorted(expected[expected > 0])[::-1], rel=1e-3)
    for hit in answer["hits"]:
        assert hit["score"] == hit["bm25"] == pytest.approx(expected[int(hit["id"][1:])], rel=1e-3)
        assert hit["cosine"] is None


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("\u652f\u6301", "zh"),
        ("\u30d1\u30b9\u30ef\u30fc\u30c9", "ja"),
        ("\ube44\ubc00\ubc88\ud638", "ko"),
        ("CAFE", "fr"),
    ],
)
def test_words_of_scripts_without_blanks_are_found(cse, embed, query, found):  # noqa: F811
    texts = {
        "zh": "\u6df7\u5408\u68c0\u7d22\u652f\u6301\u4e2d\u6587",
        "ja": "\u30d1\u30b9\u30ef\u30fc\u30c9\u3092\u5fd8\u308c\u307e\u3057\u305f",
        "ko": "\ube44\ubc00\ubc88\ud638\ub97c \uc78a\uc5b4\ubc84\ub838\uc5b4\uc694",
        "fr": "un caf\u00e9",
    }
    folder = embed([{"id": name, "text": text} for name, text in texts.items()], "scripts", "--index")
    (answer,) = answers(cse, folder, "--mode", "words", queries=[query])
    assert [hit["id"] for hit in answer["hits"]] == [found]


@pytest.mark.parametrize("query", ["the cat sat on a mat", "dog mat", '"mat" AND (sat', "the"])
def test_a_hybrid_search_ranks_as_measures_do(vectors, bundle, monkeypatch, query):
    for place in (module, hybrid):
        monkeypatch.setattr(place, "DEPTH", 12)
    monkeypatch.setattr(hybrid.fuse, "__defaults__", (12,))
    vector = OnnxEncoder(bundle, provider="cpu").encode([query], normalize=True)
    ids, rows, texts = read_vectors(vectors)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosine, bm25 = unit @ vector[0], next(Words(texts).scores([query]))
    scores = hybrid.search(cosine, bm25, unit)
    (found,) = open_table(str(vectors)).search([query], vector, 12, "hybrid")
    assert [hit.score for hit in found] == pytest.approx(np.sort(scores)[::-1][:12], abs=2e-4)
    for hit in found:
        place = ids.index(hit.id)
        assert hit.score == pytest.approx(scores[place], abs=2e-4)
        assert hit.cosine == pytest.approx(cosine[place], abs=1e-6)
        assert hit.bm25 == (pytest.approx(bm25[place], rel=1e-3) if hit.bm25 else None)


@pytest.mark.parametrize("kind", ["exact", "approximate"])
def test_more_results_begin_with_the_same(embed, cse, bundle, monkeypatch, kind):  # noqa: F811
    monkeypatch.setattr(module, "DEPTH", 20)
    folder = embed([{**row, "id": f"k{n}"} for n, row in enumerate(ROWS * 8)], "vectors", "--shard-rows", 100)
    cse("index", folder, "--kind", kind)
    table = open_table(str(folder))
    vector = OnnxEncoder(bundle, provider="cpu").encode(["dog mat"], normalize=True)
    for mode in module.MODES:
        found = {k: [hit.id for hit in table.search(["dog mat"], vector, k, mode)[0]] for k in (3, 20, 21, 77, 10**20)}
        assert len(found[77]) == 77
        assert len(set(found[10**20])) == len(found[10**20]) > 100
        for few in found.values():
            assert few == found[10**20][: len(few)]
        (hits,) = table.search(["dog mat"], vector, 352, mode)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True), mode
        if mode == "words":
            first = [(-hit.score, hit.row) for hit in hits[:20]]
            assert first == sorted(first), "of equal rows the earlier"


def test_what_is_printed_says_how_well_a_row_fits(cse, vectors):  # noqa: F811
    (hit,) = answers(cse, vectors, "-k", 1, queries=["cat"])[0]["hits"]
    line = cse("search", vectors, "cat", "-k", 1, "--provider", "cpu").out
    both = f"vectors  {hit['cosine']:.2f}  words {hit['bm25']:5.2f}"
    assert line == f"   1  {hit['score']:7.4f}  {both}  {hit['id']}  {hit['text']}\n"
    assert "  words     -  " in cse("search", vectors, "!!!", "-k", 1, "--provider", "cpu").out


def test_a_terminal_that_lacks_characters(embed, monkeypatch):
    folder = embed([{"id": "zh", "text": "\u652f\u6301 caf\u00e9"}], "zh", "--index")
    command = ["cse", "search", str(folder), "\u652f\u6301", "--mode", "words"]
    for more, wanted in (([], "zh  ?? caf\u00e9"), (["--json"], '"text": "\\u652f\\u6301 caf\\u00e9"')):
        printed = io.BytesIO()
        monkeypatch.setattr(sys, "argv", [*command, *more])
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, "latin-1"))
        with pytest.raises(SystemExit) as left:
            main()
        sys.stdout.flush()
        assert (left.value.code, wanted in printed.getvalue().decode("latin-1")) == (0, True)
    plain = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": ""}
    done = subprocess.run(
        [sys.executable, "-c", "from cse.cli import main; main()", *command[1:]], env=plain, capture_output=True
    )
    assert (done.returncode, "zh  \u652f\u6301 caf\u00e9" in done.stdout.decode()) == (0, True), done.stderr


def test_hybrid_is_the_default_where_there_is_text(cse, embed, vectors):  # noqa: F811
    assert answers(cse, vectors)[0]["mode"] == "hybrid"
    bare = embed(ROWS, "bare", text=None)
    assert "44 vectors, without words: no text was stored (--keep-text)" in cse("index", bare).err
    (answer,) = answers(cse, bare, "-k", 3, queries=["dog"])
    assert answer["mode"] == "vectors"
    assert "text" not in answer["hits"][0]
    for mode in ("hybrid", "words"):
        line = cse("search", bare, "dog", "--mode", mode).refused()
        assert line == f"{bare}: no text in the index, so --mode {mode} finds no words; embed with --keep-text"


def test_a_zero_vector_is_found_too(embed, cse, tmp_path):  # noqa: F811
    folder = embed(ROWS[:10], "vectors")
    path = shards(folder)[0]
    rows = pq.read_table(path)
    zeros = np.array(rows["embedding"].to_pylist(), np.float32)
    zeros[4] = 0
    lists = pa.FixedSizeListArray.from_arrays(pa.array(zeros.ravel()), zeros.shape[1])
    pq.write_table(rows.set_column(2, "embedding", lists), path)
    cse("index", folder)
    (answer,) = answers(cse, folder, "--mode", "vectors", queries=["dog"])
    assert len(answer["hits"]) == 10
    assert {hit["id"]: hit["cosine"] for hit in answer["hits"]}["k4"] == 0


# ---- filters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["hybrid", "vectors", "words"])
@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("year >= 2010 AND queue = 'cards'", lambda row: row["year"] >= 2010 and row["queue"] == "cards"),
        ("paid AND queue != ');('", lambda row: row["paid"]),
        ("id IN ('k0', 'k1', 'k2') OR more < 1", lambda row: row["id"] in ("k0", "k1", "k2")),
    ],
)
def test_a_filter_leaves_rows_that_meet_it(cse, vectors, mode, condition, holds):  # noqa: F811
    every = answers(cse, vectors, "--mode", mode, "-k", 44)
    left = answers(cse, vectors, "--mode", mode, "-k", 44, "--where", condition)
    none = cse("search", vectors, "dog", "--mode", mode, "--where", "year < 0", "--provider", "cpu")
    assert (none.code, none.out, none.err) == (0, "", "dog: nothing found\n")
    rows = {row["id"]: row for row in ROWS}
    for before, after in zip(every, left, strict=True):
        wanted = {hit["id"] for hit in before["hits"] if holds(rows[hit["id"]])}
        assert {hit["id"] for hit in after["hits"]} == wanted
        assert 0 < len(wanted) < len(before["hits"])
        for hit in after["hits"]:
            assert {"id": hit["id"], "text": hit["text"], **hit["columns"]} == rows[hit["id"]]


def test_names_with_capitals_and_those_of_scores(cse, embed):  # noqa: F811
    rows = [{"id": f"k{n}", "text": "dog", "Queue Name": "AB"[n % 2], "score": n} for n in range(6)]
    folder = embed(rows, "vectors", "--keep-column", "Queue Name", "--keep-column", "score", "--index")
    (answer,) = answers(cse, folder, "--where", "`Queue Name` = 'A' AND score > 0", queries=["dog"])
    assert sorted((hit["id"], hit["columns"]["score"]) for hit in answer["hits"]) == [("k2", 2), ("k4", 4)]
    assert [hit["cosine"] for hit in answer["hits"]] == pytest.approx([1, 1], abs=1e-5)


def test_filters_that_are_none(cse, vectors):  # noqa: F811
    search = ("search", vectors, "dog", "--where")
    columns = "the columns are id, text, year, queue, paid, more"
    for mode in ("hybrid", "vectors", "words"):
        line = cse(*search, "yaer > 2000", "--mode", mode).refused()
        assert line == f"--where: no column 'yaer'; did you mean 'year'?; {columns}"
    for part in (
        "year >",
        "",
        " ",
        "year > 1; DROP",
        "year > 1 or",
        "year > 1 garbage",
        "paid)",
        "paid) OR (paid",
    ):
        line = cse(*search, part).refused()
        assert line == f'--where: {part!r} is not a condition in SQL, such as "id = 7"'
    for part in ("year + 1", "year = 'x'", "foo(year)", "year LIKE 3"):
        line = cse(*search, part).refused()
        assert line.startswith(f"--where: {part!r} is not a condition: ")
        assert ".rs:" not in line


# ---- kept columns and titles --------------------------------------------------------------------------------------


def test_columns_are_kept_in_their_types(embed, tmp_path):
    rows = [*ROWS, {**ROWS[0], "id": "last", "year": None, "more": 2, "queue": None}]
    folder = embed(rows, "vectors", *KEPT)
    table = pa.concat_tables([pq.read_table(shard) for shard in shards(folder)])
    assert table.column_names == ["id", "text", "year", "queue", "paid", "more", "embedding"]
    assert [str(table.schema.field(name).type) for name in ("year", "queue", "paid", "more")] == [
        "int64", "string", "bool", "double",
    ]  # fmt: skip
    assert [{name: row[name] for name in rows[0]} for row in table.to_pylist()] == rows


def test_kept_columns_of_parquet(cse, bundle, tmp_path):  # noqa: F811
    corpus = write_parquet(
        tmp_path / "a.parquet",
        {"text": ["the cat", "a dog"], "n": pa.array([1, None], pa.int16()), "f": pa.array([0.5, 2], pa.float32()),
         "name": ["a", None], "title": ["Old", None], "when": pa.array([1, 2], pa.timestamp("ms"))},
    )  # fmt: skip
    run = ("embed", corpus, "--model", bundle, "--workers", 0, "--provider", "cpu", "--keep-text", "--out")
    kept = [part for name in ("n", "f", "name") for part in ("--keep-column", name)]
    assert cse(*run, tmp_path / "vectors", *kept, "--title-column", "title").code == 0
    assert [
        {name: value for name, value in row.items() if name != "embedding"}
        for row in pq.read_table(shards(tmp_path / "vectors")[0]).to_pylist()
    ] == [
        {"id": 0, "text": "Old the cat", "n": 1, "f": 0.5, "name": "a"},
        {"id": 1, "text": "a dog", "n": None, "f": 2.0, "name": None},
    ]
    line = cse(*run, tmp_path / "x", "--keep-column", "when").refused()
    assert line.endswith("column 'when' (--keep-column) holds timestamp[ms]; keep text, numbers, true and false")


@pytest.mark.parametrize(
    ("name", "values", "wanted"),
    [
        ("year", [1, "x"], "a.jsonl:2: column 'year' (--keep-column) held int64 before, here string; give one type"),
        ("year", [1, [2]], "column 'year' (--keep-column) should hold text, numbers, true or false, found '[2]'"),
        ("text", ["a", "b"], "--keep-column text: the index has its own column of that name; rename it in the corpus"),
        ("yaer", [1, 2], "no column 'yaer' (--keep-column); did you mean 'year'?"),
    ],
)  # fmt: skip
def test_columns_that_cannot_be_kept(cse, bundle, tmp_path, name, values, wanted):  # noqa: F811
    corpus = write_jsonl(tmp_path / "a.jsonl", [{"text": "the cat", "year": value} for value in values])
    embed = ("embed", corpus, "--out", tmp_path / "vectors", "--model", bundle, "--workers", 0)
    assert wanted in cse(*embed, "--keep-column", name).refused()
    assert not (tmp_path / "vectors/plan.json").exists()


NOTHING = ["", "  ", "-", "...", "N/A", "n.a.", "null", "\u3002\u2026", "\u200b", "\\N", "\u3164\u2800"]


@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.parquet", "corpus.txt"])
def test_rows_that_say_nothing_are_counted_and_left_out(cse, bundle, tmp_path, name):  # noqa: F811
    texts = ["the cat", *NOTHING, "a dog", "\U0001f44d", "7", "nap"]
    rows = [{"text": text} for text in texts]
    corpus = tmp_path / name
    if corpus.suffix == ".txt":
        write_txt(corpus, texts)
    else:
        (write_jsonl if corpus.suffix == ".jsonl" else write_parquet)(
            corpus, rows if corpus.suffix == ".jsonl" else {"text": texts}
        )
    run = ("embed", corpus, "--out", tmp_path / "out", "--model", bundle, "--workers", 0, "--provider", "cpu")
    done = cse(*run, "--keep-text", "--index", "--shard-rows", 4)  # the second shard holds none
    said = "ids 1, 2, 3, 4, 5, 6, 7, 8 and 3 more"
    assert f"left out: 11 rows say nothing (empty, punctuation, N/A): {said}\n" in done.err
    assert "out: 5 vectors of 8 dimensions in 4 shards\n" in done.err
    (answer,) = answers(cse, tmp_path / "out", queries=["dog"])
    assert {hit["id"]: hit["text"] for hit in answer["hits"]} == {
        n: text for n, text in enumerate(texts) if text not in NOTHING
    }
    assert cse(*run, "--keep-text", "--shard-rows", 4).err.splitlines()[-1].startswith(f"{tmp_path}/out: 5 vectors")


def test_a_corpus_that_says_nothing(cse, bundle, tmp_path):  # noqa: F811
    corpus = write_txt(tmp_path / "a.txt", ["-", "", "N/A"])
    line = cse("embed", corpus, "--out", tmp_path / "out", "--model", bundle, "--workers", 0, "--index").refused()
    assert line == "a.txt: no text says anything; name another column (--text-column)"


def test_an_encoded_file_keeps_rows_that_say_nothing_and_says_so(cse, bundle, tmp_path):  # noqa: F811
    corpus = write_txt(tmp_path / "a.txt", ["the cat", "", "dog", "N/A"])
    done = cse("encode", bundle, corpus, "--out", tmp_path / "v.npy", "--device", "cpu")
    assert "their vectors mean nothing: 2 rows say nothing (empty, punctuation, N/A): rows 1, 3\n" in done.err
    assert len(np.load(tmp_path / "v.npy")) == 4


def test_a_title_stands_before_its_text_once(embed, bundle, tmp_path):
    rows = [{"id": "a", "title": " The cat ", "text": "sat"}, {"id": "b", "title": "a dog", "text": "a dog sat"},
            {"id": "c", "title": None, "text": "mat"}, {"id": "d", "title": "the mat", "text": ""}]  # fmt: skip
    folder = embed(rows, "vectors", "--title-column", "title")
    _, vectors, texts = read_vectors(folder)
    assert texts == ["The cat sat", "a dog sat", "mat", "the mat"]
    np.testing.assert_allclose(vectors, OnnxEncoder(bundle, provider="cpu").encode(texts), atol=1e-6)


# ---- updates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["exact", "approximate"])
def test_an_update_replaces_rows_by_id_and_adds_the_others(cse, embed, bundle, kind):  # noqa: F811
    # an index of partitions needs 256 rows
    folder = embed([{**row, "id": f"k{n}"} for n, row in enumerate(ROWS * 8)], "vectors", "--shard-rows", 100, *KEPT)
    cse("index", folder, "--kind", kind)
    rows = len(open_table(str(folder)))
    news = [{**ROWS[1], "text": "zebra the mat", "year": 1}, {**ROWS[1], "id": "new", "text": "a zebra", "year": 2}]
    changes = embed(news, "changes", *KEPT)
    assert cse("index", folder, "--update", changes).err == f"{folder}: 1 rows replaced, 1 added\n"
    assert len(open_table(str(folder))) == rows + 1
    (answer,) = answers(cse, folder, "--mode", "words", queries=["zebra"])
    assert [(hit["id"], hit["columns"]["year"]) for hit in answer["hits"]] == [("new", 2), ("k1", 1)]
    (answer,) = answers(cse, folder, "--mode", "vectors", "--where", "year < 3", queries=["zebra the mat"])
    vector = OnnxEncoder(bundle, provider="cpu").encode(["zebra the mat", "a zebra"], normalize=True)
    assert [hit["id"] for hit in answer["hits"]] == ["k1", "new"]
    np.testing.assert_allclose([hit["cosine"] for hit in answer["hits"]], [1, vector[0] @ vector[1]], atol=1e-5)


def test_a_row_without_text_now_is_removed(cse, embed):  # noqa: F811
    folder = embed(
        [{**row, "id": name} for name, row in zip(("it's", "b", "c"), ROWS[:3], strict=True)], "vectors", *KEPT
    )
    cse("index", folder)
    texts = {"it's": " ", "d": "a dog", "e": "-"}
    changes = embed([{**ROWS[0], "id": id_, "text": text} for id_, text in texts.items()], "changes", *KEPT)
    told = cse("index", folder, "--update", changes).err
    assert told == f"{folder}: 0 rows replaced, 1 added, 1 removed, whose text says nothing now\n"
    (answer,) = answers(cse, folder, "-k", 9, "--mode", "vectors", queries=["zebra"])
    assert sorted(hit["id"] for hit in answer["hits"]) == ["b", "c", "d"]
    alone = embed([{**ROWS[0], "id": "b", "text": "N/A"}], "alone", *KEPT)
    assert cse("index", folder, "--update", alone).err.endswith(
        "0 rows replaced, 0 added, 1 removed, whose text says nothing now\n"
    )
    assert "no row says anything" in cse("index", alone).refused()
    every = embed([{**ROWS[0], "id": id_, "text": ""} for id_ in "cd"], "every", *KEPT)
    assert "2 removed" in cse("index", folder, "--update", every).err
    for mode in module.MODES:
        assert [answer["hits"] for answer in answers(cse, folder, "--mode", mode)] == [[], [], []]
    cse("index", folder)
    twice = embed([{**ROWS[0], "id": "c"}, {**ROWS[0], "id": "c", "text": ""}], "twice", *KEPT)
    assert "id 'c' occurs twice" in cse("index", folder, "--update", twice).refused()


def test_updates_that_do_not_fit(cse, embed, vectors, bundle, tmp_path):  # noqa: F811
    before = answers(cse, vectors)

    def refused(changes):
        return cse("index", vectors, "--update", changes).refused()

    assert "changes: has columns id (string), text (string), embedding" in refused(embed(ROWS, "changes"))
    twice = embed([ROWS[0], ROWS[1], ROWS[0]], "twice", *KEPT)
    assert refused(twice) == f"{twice}: id 'k0' occurs twice; give each row its own (--id-column)"
    other = shutil.copytree(bundle, tmp_path / "other")
    tree = json.loads((other / "bundle.json").read_text())
    (other / "bundle.json").write_text(json.dumps(sealed(tree | {"max_length": 5})))
    assert "made by another model, or in another role, than" in refused(embed(ROWS, "others", *KEPT, model=other))
    assert answers(cse, vectors) == before


def test_ids_that_name_other_rows(cse, embed, vectors, bundle, tmp_path):  # noqa: F811
    """Row numbers of another corpus, or another column: an update would replace what is unrelated."""
    before = answers(cse, vectors)
    run = ("--model", bundle, "--workers", 0, "--provider", "cpu", "--keep-text")
    corpus = write_jsonl(tmp_path / "a.jsonl", [{"id": "k1", "number": "k1", "text": "a zebra"}])
    for name, options in {"rows": (), "numbers": ("--id-column", "number")}.items():
        assert cse("embed", corpus, "--out", tmp_path / name, *run, *options).code == 0
    line = cse("index", vectors, "--update", tmp_path / "rows").refused()
    assert line == (
        f"{tmp_path}/rows: its ids are row numbers, those of {vectors} those of column 'id': they name other rows; "
        "embed both with the same --id-column"
    )
    assert (
        "its ids are those of column 'number', those of"
        in cse("index", vectors, "--update", tmp_path / "numbers").refused()
    )
    cse("index", tmp_path / "rows")
    assert "its ids are row numbers" in cse("index", tmp_path / "rows", "--update", tmp_path / "rows").refused()
    assert answers(cse, vectors) == before


def test_ids_that_occur_twice_are_no_index(cse, embed):  # noqa: F811
    twice = embed([ROWS[0], ROWS[1], ROWS[0]], "twice")
    assert cse("index", twice).refused() == f"{twice}: id 'k0' occurs twice; give each row its own (--id-column)"
    assert not (twice / "index.lance").exists()


def test_a_search_under_way_sees_the_index_as_it_was(embed, bundle):
    folder, changes = embed(ROWS, "vectors"), embed([{"id": "new", "text": "zebra"}], "changes")
    build_table(open_vectors(str(folder)))
    vector = OnnxEncoder(bundle, provider="cpu").encode(["dog zebra"], normalize=True)
    table = open_table(str(folder))
    before = {mode: table.search(["dog zebra"], vector, 44, mode) for mode in module.MODES}
    update_table(str(folder), open_vectors(str(changes)))
    build_table(open_vectors(str(folder)))
    update_table(str(folder), open_vectors(str(changes)))
    assert {mode: table.search(["dog zebra"], vector, 44, mode) for mode in module.MODES} == before
    assert "new" in {hit.id for hit in open_table(str(folder)).search(["zebra"], None, 5, "words")[0]}


def test_a_killed_build_leaves_the_index_before(cse, embed, vectors, monkeypatch):  # noqa: F811
    before = answers(cse, vectors)

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(index, "_publish", killed)
    with pytest.raises(KeyboardInterrupt):
        build_table(open_vectors(str(vectors)))
    assert answers(cse, vectors) == before
    fresh = embed(ROWS, "fresh")
    with pytest.raises(KeyboardInterrupt):
        build_table(open_vectors(str(fresh)))
    assert cse("search", fresh, "dog").refused() == (
        f"{fresh}: the index is not finished or damaged; build the index again: cse index {fresh}"
    )


@pytest.mark.parametrize(
    ("which", "damage"),
    [
        ("_versions/*.manifest", lambda content: content[: len(content) // 2]),
        ("_versions/*.manifest", lambda content: b""),
        ("data/*", lambda content: bytes(byte ^ (n % 9 == 0) for n, byte in enumerate(content))),
        ("_indices/*/part_0_invert.lance", lambda content: content[:-1] + b"x"),
        ("sha256.json", lambda content: b"[1]"),
        ("data/*", None),
    ],
)
def test_a_damaged_index_is_found_and_built_again(cse, vectors, which, damage):  # noqa: F811
    folder = vectors
    before = answers(cse, folder)
    assert "files of the index are as they were written\n" in cse("index", folder, "--verify").err
    file = sorted(folder.glob(f"index.lance/{which}"))[0]  # names of manifests fall: the newest
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage(file.read_bytes()))
    for command in (("search", folder, "dog"), ("index", folder, "--verify"), ("index", folder, "--update", folder)):
        assert cse(*command).refused().endswith(f"; build the index again: cse index {folder}")
    assert cse("index", folder).code == 0
    assert answers(cse, folder) == before
    assert cse("index", folder, "--verify").code == 0


def test_what_is_too_large_to_check_at_opening_is_checked_on_demand(cse, vectors, monkeypatch):  # noqa: F811
    folder = vectors
    monkeypatch.setattr(database, "_AT_OPENING", 0)
    (file,) = folder.glob("index.lance/data/*")
    content = bytearray(file.read_bytes())
    content[64] ^= 1
    file.write_bytes(content)
    assert cse("search", folder, "dog").code == 0
    assert "not as it was written; build" in cse("index", folder, "--verify").refused()


def test_a_table_of_another_program_is_neither_written_over_nor_deleted(cse, embed):  # noqa: F811
    import lancedb

    folder = embed(ROWS[:5], "mine")
    table = lancedb.connect(str(folder)).create_table("index", [{"thesis": "my own"}])
    before = sorted(path.name for path in folder.iterdir())
    line = f"{folder}/index.lance: a table that `cse index` did not make; move it, and index again"
    assert cse("index", folder).refused() == line
    with pytest.raises(AssertionError, match="a table that `cse index` did not make"):
        embed(ROWS[:5], "mine", "--again")
    with pytest.raises(CseError, match="a table that `cse index` did not make"):
        check_vectors(folder)
    assert sorted(path.name for path in folder.iterdir()) == before
    assert table.to_arrow().to_pylist() == [{"thesis": "my own"}]


def test_an_index_removed_during_a_search(vectors):
    table = open_table(str(vectors))
    shutil.rmtree(vectors / "index.lance")
    with pytest.raises(CseError, match=r"the index was removed during the search; build it again \(cse index\)$"):
        table.search(["dog"], None, 3, "words")


# ---- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["", "  \n"])
def test_empty_queries(cse, vectors, query):  # noqa: F811
    assert cse("search", vectors, "dog", query).refused() == "search: query 2 is empty; write at least a word"


def test_queries_or_a_task(cse, vectors):  # noqa: F811
    assert "give queries, or --task and none" in cse("search", vectors).err
    assert "give queries, or --task and none" in cse("search", vectors, "dog", "--task", "x").err


def test_vectors_of_another_width(vectors):
    with pytest.raises(CseError, match=r"^search: 1 queries, vectors \(1, 3\); .*vectors has 8 dimensions$"):
        open_table(str(vectors)).search(["dog"], np.ones((1, 3), np.float32), 3, "vectors")


def test_no_index_and_no_folder(cse, embed, tmp_path):  # noqa: F811
    folder = embed(ROWS, "vectors")
    assert cse("search", folder, "dog").refused() == f"{folder}: no index here; build it with `cse index {folder}`"
    assert "no index here; did you mean" in cse("search", f"{folder}s", "dog").refused()
    from lancedb import connect

    connect(folder).create_table("index", [{"id": 1}])
    assert "not finished or damaged; build the index again" in cse("search", folder, "dog").refused()


def test_starting_over_removes_the_index(cse, embed, vectors):  # noqa: F811
    assert (vectors / "index.lance").is_dir()
    for _ in range(2):
        embed(ROWS[:9], "vectors", "--again")
        assert not (vectors / "index.lance").exists()
    embed(ROWS[:9], "vectors", "--again", "--index")
    assert (vectors / "index.lance").is_dir()


def test_a_place_that_holds_no_index(cse, bundle, tmp_path):  # noqa: F811
    corpus = write_txt(tmp_path / "a.txt", ["the cat"])
    embed_corpus(str(corpus), "memory://no-index", str(bundle), choices(), workers=0)
    line = cse("index", "memory://no-index").refused()
    assert line == "memory://no-index: an index lies on a disk or in a bucket (s3://, gs://, az://)"


def test_without_lancedb_the_line_says_what_to_install(cse, vectors, monkeypatch):  # noqa: F811
    monkeypatch.setitem(sys.modules, "lancedb", None)
    for command in (("index", vectors), ("search", vectors, "dog")):
        assert cse(*command).refused() == "the index needs LanceDB: pip install 'cse[search]'"


# ---- judged queries -----------------------------------------------------------------------------------------------


def test_measures_of_each_mode_are_those_of_the_ranks(cse, embed, bundle, tmp_path):  # noqa: F811
    documents = [{"_id": row["id"], "id": row["id"], "title": "", "text": row["text"] or "dog mat"} for row in ROWS]
    write_jsonl(tmp_path / "task/corpus.jsonl", documents)
    write_jsonl(tmp_path / "task/queries.jsonl", [{"_id": f"q{n}", "text": text} for n, text in enumerate(QUERIES)])
    judged = {("q0", "k2"): 2, ("q0", "k9"): 1, ("q1", "k1"): 1, ("q2", "k30"): 1, ("q2", "k3"): 0}
    lines = ["query-id\tcorpus-id\tscore", *(f"{q}\t{d}\t{grade}" for (q, d), grade in judged.items())]
    (tmp_path / "task/qrels").mkdir()
    (tmp_path / "task/qrels/test.tsv").write_text("\n".join(lines))
    folder = tmp_path / "search"
    options = ("--id-column", "_id", "--title-column", "title", "--keep-text", "--workers", 0, "--provider", "cpu")
    assert cse("embed", tmp_path / "task/corpus.jsonl", "--out", folder, "--model", bundle, *options).code == 0
    cse("index", folder)
    done = cse("search", folder, "--task", tmp_path / "task", "--json", "--provider", "cpu")
    scores = json.loads(done.out)
    assert list(scores) == ["hybrid", "vectors", "words"]
    for mode, values in scores.items():
        gains = []
        for number, answer in enumerate(answers(cse, folder, "--mode", mode, "-k", 10)):
            grades = {document: grade for (query, document), grade in judged.items() if query == f"q{number}"}
            gain = sum(grades.get(hit["id"], 0) / np.log2(hit["rank"] + 1) for hit in answer["hits"])
            ideal = sum(g / np.log2(n + 2) for n, g in enumerate(sorted(grades.values(), reverse=True)))
            gains.append(gain / ideal)
        assert values["nDCG@10"] == pytest.approx(100 * np.mean(gains)), mode
    header, *rows = cse("search", folder, "--task", tmp_path / "task", "--provider", "cpu").out.splitlines()
    assert header.split() == ["nDCG@10", "MRR@10", "recall@10", "recall@100"]
    assert rows[0].split()[:2] == ["hybrid", f"{scores['hybrid']['nDCG@10']:.2f}"]
    other = embed(documents[:9], "few")
    cse("index", other)
    assert "9 rows, not the 44 documents of" in cse("search", other, "--task", tmp_path / "task").refused()
