"""`cse index` and `cse search`: what the index finds against numpy, what it holds, how it changes, what it refuses."""

import json
import shutil
import sys

import numpy as np
import pytest

from cse.data.tasks.beir import read_beir
from cse.errors import CseError
from cse.evaluation.retrieval import FOUND, NDCG, OF_WORDS, WITH_WORDS
from cse.evaluation.score import score_task
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.search import hybrid, index
from cse.search import table as module
from cse.search.table import open_table, refuse_foreign
from cse.search.words import Words
from cse.storage import Folder
from tests.data.tasks.files import write_beir
from tests.parts import refusal
from tests.rows import write_lines, write_objects
from tests.runtime.conftest import write_bundle
from tests.search.corpora import answers, is_approximate, read_vectors, sentences

QUERIES = ["the cat sat", "dog", "a mat"]
ROWS = [
    {"id": f"k{n}", "text": text, "year": 2000 + n, "queue": ["billing", "cards"][n % 2], "Was paid": n % 3 == 0}
    for n, text in enumerate(["the cat", "dog", "a mat the cat sat on", "of", *sentences(40, seed=4)])
]
KEPT = [part for name in ("year", "queue", "Was paid") for part in ("--keep-column", name)]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Do not change it: the index of ``table`` is made once for all tests."""
    return write_bundle(tmp_path_factory.mktemp("corpora") / "bundle")


@pytest.fixture
def make(index, bundle, tmp_path):
    """`cse index` of rows with ids; returns the folder."""

    def run(rows, name, *options, model=bundle):
        done = index(write_objects(tmp_path / f"{name}.jsonl", rows), tmp_path / name, model, *options)
        assert done.code == 0, done.err
        return tmp_path / name

    return run


@pytest.fixture
def table(make, tmp_path, bundle):
    """A copy of an index that is made once."""
    folder, made = tmp_path / "table", bundle.with_name("table")
    if not made.exists():
        make(ROWS, "table", *KEPT)
        shutil.copytree(folder, made)
        shutil.rmtree(folder)
    return shutil.copytree(made, folder)


@pytest.mark.parametrize("kind", ["exact", "approximate"])
def test_vectors_find_what_numpy_finds_and_more_results_begin_with_the_same(cse, make, bundle, monkeypatch, kind):
    folder = make([{**row, "id": f"k{n}"} for n, row in enumerate(ROWS * 8)], "table", "--kind", kind)
    assert is_approximate(folder) == (kind == "approximate")
    unit = OnnxEncoder(bundle, provider="cpu").encode(QUERIES, normalize=True)
    expected = unit @ read_vectors(folder)[1].T
    for number, answer in enumerate(answers(cse, folder, *QUERIES, "--mode", "vectors", "-k", 5)):
        hits = answer["hits"]
        assert (answer["query"], answer["mode"]) == (QUERIES[number], "vectors")
        assert [hit["rank"] for hit in hits] == [1, 2, 3, 4, 5]
        best = np.sort(expected[number])[::-1][:5]
        np.testing.assert_allclose([hit["cosine"] for hit in hits], best, atol=2e-6)
        assert [hit["score"] for hit in hits] == [hit["cosine"] for hit in hits]
        for hit in hits:
            assert hit["text"] == ROWS[int(hit["id"][1:]) % len(ROWS)]["text"]
    monkeypatch.setattr(module, "DEPTH", 20)
    table, vector = open_table(str(folder)), OnnxEncoder(bundle, provider="cpu").encode(["dog mat"], normalize=True)
    for mode in module.MODES:
        found = {k: table.search(["dog mat"], vector, k, mode)[0] for k in (3, 20, 21, 77, 10**20)}
        every = found[10**20]
        assert len(found[77]) == 77 and len({hit.id for hit in every}) == len(every) > 100
        for few in found.values():
            assert [hit.id for hit in few] == [hit.id for hit in every[: len(few)]]
        assert [hit.score for hit in every] == sorted((hit.score for hit in every), reverse=True), mode
        if mode == "words" or (mode, kind) == ("vectors", "exact"):
            first = [(-round(hit.score, 5), int(hit.id[1:])) for hit in every[:20]]
            assert first == sorted(first), "of equal rows the earlier"


def test_words_rank_by_bm25_and_need_no_model(cse, make, bundle, tmp_path):
    model = shutil.copytree(bundle, tmp_path / "model")
    folder = make(ROWS, "words", model=model)
    shutil.rmtree(model)
    (answer,) = answers(cse, folder, "The dogs, MAT", "--mode", "words", "-k", 44)
    expected = next(Words([row["text"] for row in ROWS]).scores(["The dogs, MAT"]))  # the words of measures
    assert [hit["bm25"] for hit in answer["hits"]] == pytest.approx(sorted(expected[expected > 0])[::-1], rel=1e-3)
    for hit in answer["hits"]:
        assert hit["score"] == hit["bm25"] == pytest.approx(expected[int(hit["id"][1:])], rel=1e-3)
        assert hit["cosine"] is None


@pytest.mark.parametrize("query", ["the cat sat on a mat", '"mat" AND (sat', "the"])
def test_a_hybrid_search_ranks_as_measures_do(table, bundle, monkeypatch, query):
    for place in (module, hybrid):
        monkeypatch.setattr(place, "DEPTH", 12)
    monkeypatch.setattr(hybrid.fuse, "__defaults__", (12,))
    vector = OnnxEncoder(bundle, provider="cpu").encode([query], normalize=True)
    ids, unit, texts = read_vectors(table)
    cosine, bm25 = unit @ vector[0], next(Words(texts).scores([query]))
    scores = hybrid.search(cosine, bm25, unit)
    (found,) = open_table(str(table)).search([query], vector, 12, "hybrid")
    assert [hit.score for hit in found] == pytest.approx(np.sort(scores)[::-1][:12], abs=2e-4)
    for hit in found:
        place = ids.index(hit.id)
        assert hit.score == pytest.approx(scores[place], abs=2e-4)
        assert hit.cosine == pytest.approx(cosine[place], abs=1e-6)
        assert hit.bm25 == (pytest.approx(bm25[place], rel=1e-3) if hit.bm25 else None)


@pytest.mark.parametrize("mode", module.MODES)
def test_a_filter_leaves_rows_that_meet_it(cse, table, mode):
    every, rows = answers(cse, table, *QUERIES, "--mode", mode, "-k", 44), {row["id"]: row for row in ROWS}
    for condition, holds in (
        ("year >= 2010 AND queue = 'cards'", lambda row: row["year"] >= 2010 and row["queue"] == "cards"),
        ("`Was paid` AND queue != ');('", lambda row: row["Was paid"]),
        ("id IN ('k0', 'k1', 'k2') OR year < 1", lambda row: row["id"] in ("k0", "k1", "k2")),
    ):
        left = answers(cse, table, *QUERIES, "--mode", mode, "-k", 44, "--where", condition)
        for before, after in zip(every, left, strict=True):
            wanted = {hit["id"] for hit in before["hits"] if holds(rows[hit["id"]])}
            assert {hit["id"] for hit in after["hits"]} == wanted
            assert 0 < len(wanted) < len(before["hits"])
            for hit in after["hits"]:
                assert {"id": hit["id"], "text": hit["text"], **hit["columns"]} == rows[hit["id"]]
    none = cse("search", table, "dog", "--mode", mode, "--where", "year < 0", "--device", "cpu")
    assert (none.code, none.out, none.err) == (0, "", "dog: nothing found\n")


def test_filters_that_are_none(cse, table):
    search = ("search", table, "dog", "--where")
    for mode in module.MODES:
        line = cse(*search, "yaer > 2000", "--mode", mode).refused()
        assert line.startswith("--where: no column 'yaer'; did you mean 'year'?; the columns are id, passage, text")
    for part in ("year >", " ", "year > 1; DROP", "year > 1 garbage", "year)", "year) OR (year"):
        line = cse(*search, part).refused()
        assert line == f'--where: {part!r} is not a condition in SQL, such as "id = 7"'
    for part in ("year + 1", "year = 'x'", "foo(year)", "year LIKE 3"):
        line = cse(*search, part).refused()
        assert line.startswith(f"--where: {part!r} is not a condition: ") and ".rs:" not in line


def test_a_killed_update_leaves_the_index_before_and_is_gone_on_with(cse, make, table, monkeypatch):
    before = answers(cse, table, *QUERIES)
    news = [*ROWS[5:], {**ROWS[0], "id": "new", "text": "zebra"}]

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(index._Run, "_publish", killed)
        for name in ("table", "fresh"):
            with pytest.raises(AssertionError):
                make(news, name, *KEPT)
    assert answers(cse, table, *QUERIES) == before
    line = cse("search", table.with_name("fresh"), "dog").refused()
    assert "the index is not finished or damaged; run `cse index` again" in line
    monkeypatch.setattr(index.Maker, "embed", killed)  # all was embedded
    for name in ("table", "fresh"):
        folder = make(news, name, *KEPT)
        assert {hit["id"] for hit in answers(cse, folder, "zebra", "--mode", "words")[0]["hits"]} == {"new"}
        assert len(open_table(str(folder))) == 40


@pytest.mark.parametrize(
    ("which", "damage"),
    [
        ("_versions/*.manifest", lambda content: content[: len(content) // 2]),
        ("data/*", lambda content: bytes(byte ^ (n % 9 == 0) for n, byte in enumerate(content))),
        ("_indices/*/part_0_invert.lance", lambda content: content[:-1] + b"x"),
        ("manifest.json", lambda content: b"[1]"),
        ("manifest.json", lambda content: content.replace(b'"size', b'"Size')),
        ("data/*", None),
    ],
)
def test_a_damaged_index_is_found_and_made_again(cse, bundle, table, which, damage, monkeypatch):
    before = answers(cse, table, *QUERIES)
    assert "files of the index are as they were written\n" in cse("index", "--out", table, "--verify").err
    file = sorted(table.glob(f"index.lance/{which}"))[0]  # names of manifests fall: the newest
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage(file.read_bytes()))
    run = ("index", write_objects(table.with_suffix(".jsonl"), ROWS), "--out", table, "--model", bundle, *KEPT)
    for command in (("search", table, "dog"), ("index", "--out", table, "--verify"), run):
        assert "--again" in cse(*command).refused(), command
    assert cse(*run, "--again", "--device", "cpu").code == 0
    assert answers(cse, table, *QUERIES) == before
    monkeypatch.setattr(module, "_AT_OPENING", 0)  # as if it were too large to check at opening
    (file,) = table.glob("index.lance/data/*")
    content = bytearray(file.read_bytes())
    content[64] ^= 1
    file.write_bytes(content)
    assert cse("search", table, "dog").code == 0
    assert "not as it was written; run" in cse("index", "--out", table, "--verify").refused()


def test_a_table_of_another_program_is_neither_written_over_nor_deleted(make, tmp_path):
    import lancedb

    there = lancedb.connect(str(tmp_path / "mine")).create_table("index", [{"thesis": "my own"}])
    for options in ((), ("--again",)):
        with pytest.raises(AssertionError, match="a table that `cse index` did not make"):
            make(ROWS[:5], "mine", *options)
    with pytest.raises(CseError, match="a table that `cse index` did not make"):
        refuse_foreign(Folder(str(tmp_path / "mine")))
    assert there.to_arrow().to_pylist() == [{"thesis": "my own"}]


def test_what_cannot_be_searched_or_indexed(cse, bundle, table, tmp_path, monkeypatch):
    corpus, empty = write_lines(tmp_path / "empty/notes.md", ["mine"]), tmp_path / "empty"
    index = ("index", corpus, "--model", bundle, "--out")
    for words, said in (
        (("search", table, "dog", " \n"), "search: query 2 is empty; write at least a word"),
        (("search", empty, "dog"), f"{empty}: no index here; make one with `cse index TEXTS --out {empty}`"),
        (("search", f"{table}s", "dog"), "no index here; did you mean"),
        ((*index, "memory://no"), "memory://no: an index lies on a disk or in a bucket (s3://, gs://, az://)"),
    ):
        assert said in cse(*words).refused()
    for given in ((), ("dog", "--task", "x")):
        assert "give queries, or --task and none" in cse("search", table, *given).err
    assert "--task measures whole searches" in cse("search", table, "--task", "x", "--where", "id = 1").err
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "lancedb", None)
        for command in ((*index, table.with_name("x")), ("search", table, "dog")):
            assert cse(*command).refused() == "the index needs LanceDB: pip install 'cse[search]'"
    there = open_table(str(table))
    shutil.rmtree(table / "index.lance")
    said = refusal(there.search, ["dog"], None, 3, "words")
    assert said.endswith("the index was removed during the search; build it again (cse index)")


def test_evaluate_says_of_long_documents_what_a_search_of_their_passages_says(cse, make, bundle, tmp_path):
    encoder, rng = OnnxEncoder(bundle, provider="cpu"), np.random.default_rng(9)  # no two documents are as near
    words = " ".join(sentences(60, seed=8)).split()
    texts = [" ".join(rng.choice(words, 9 * (n % 3) ** 2 + 3)) for n in range(15)]
    lengths = np.array(encoder.token_counts(texts)) / encoder.max_length
    assert (lengths < 1).any() and (lengths > 2.5).any()
    documents = [{"_id": f"d{n}", "title": "", "text": text} for n, text in enumerate(texts)]
    queries = [{"_id": f"q{n}", "text": " ".join(rng.choice(words, 6))} for n in range(5)]
    judged = [(f"q{n}", f"d{d}", 1 + d % 2) for n in range(5) for d in rng.permutation(15)[: n + 2].tolist()]
    task = write_beir(tmp_path / "task", corpus=documents, queries=queries, test=judged)
    folder = tmp_path / "search"
    assert cse("index", task, "--out", folder, "--model", bundle, "--device", "cpu").code == 0
    assert len(open_table(str(folder))) == 15 < open_table(str(folder)).rows
    scores = json.loads(cse("search", folder, "--task", task, "--json", "--device", "cpu").out)
    found = score_task(encoder, read_beir(task, "task"), measures=[*FOUND, WITH_WORDS, OF_WORDS]).values
    for mode, name in (("vectors", NDCG), ("hybrid", WITH_WORDS), ("words", OF_WORDS)):
        assert found[name] == pytest.approx(scores[mode][NDCG], abs=1e-4), mode
    assert {name: found[name] for name in FOUND} == pytest.approx(scores["vectors"], abs=1e-4)
    assert 1 < scores["vectors"][NDCG] < 99
    alone = cse("search", folder, "--task", task, "--json", "--mode", "words", "--model", "none").out
    assert json.loads(alone) == {"words": scores["words"]}, "words need no model"
    assert "9 documents, not the 15 of" in cse("search", make(documents[:9], "few"), "--task", task).refused()
