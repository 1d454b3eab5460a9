"""`cse embed`, `cse index` and `cse search`: what they write, go on from, refuse and find. Without Ray: fast."""

from __future__ import annotations

import json
import logging
from contextlib import contextmanager

import numpy as np
import pyarrow.parquet as pq
import pytest

from cse.errors import CseError, Interrupted
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.seal import sealed
from cse.scale.corpus.output import open_vectors
from cse.scale.corpus.worker import Worker
from tests.cli.conftest import cse  # noqa: F401 - a fixture
from tests.cli.workspace import contents, full_disk
from tests.runtime.conftest import DIMENSION, bundle, write_bundle_of_words  # noqa: F401 - a fixture
from tests.scale.corpora import outputs, read_vectors, sentences, shards, write_jsonl, write_txt

TEXTS = [*sentences(45), "a", "the cat", "the"]


@pytest.fixture
def corpus(tmp_path):
    return write_txt(tmp_path / "corpus.txt", TEXTS)


@pytest.fixture
def run(cse, bundle, monkeypatch):  # noqa: F811
    """`cse embed` without Ray, ten rows a shard."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def embed(corpus, out, *options):
        return cse(
            "embed", corpus, "--out", out, "--model", bundle, "--workers", 0, "--shard-rows", 10, "--provider", "cpu",
            *options,
        )  # fmt: skip

    return embed


# ---- what is written ----------------------------------------------------------------------------------------------


def test_vectors_are_those_of_the_encoder(run, corpus, tmp_path, bundle):  # noqa: F811
    done = run(corpus, tmp_path / "vectors", "--keep-text")
    assert done.code == 0
    assert done.err.endswith(f"{tmp_path}/vectors: 48 vectors of 8 dimensions in 5 shards\n")
    assert [path.name for path in shards(tmp_path / "vectors")] == [f"part-00000{n}.parquet" for n in range(5)]
    ids, vectors, texts = read_vectors(tmp_path / "vectors")
    assert (ids, texts) == (list(range(48)), TEXTS)
    np.testing.assert_allclose(vectors, OnnxEncoder(bundle, provider="cpu").encode(TEXTS), atol=1e-6)
    schema = pq.read_schema(tmp_path / "vectors/part-000000.parquet")
    assert [(name, str(schema.field(name).type)) for name in schema.names] == [
        ("id", "int64"), ("text", "string"), ("embedding", f"fixed_size_list<element: float>[{DIMENSION}]"),
    ]  # fmt: skip
    assert set(outputs(tmp_path / "vectors")) == {
        "plan.json",
        "manifest.json",
        *(f"part-00000{n}.parquet" for n in range(5)),
    }
    assert not (tmp_path / "vectors/.cse-drafts").exists()


def test_truncated_rows_are_counted_once_for_all_shards_whatever_is_logged(run, tmp_path, caplog):
    caplog.set_level(logging.ERROR, "cse")
    corpus = write_txt(tmp_path / "a.txt", [f"{'the ' * n}cat" for n in range(3, 15)])
    first, second = run(corpus, tmp_path / "vectors").err.splitlines()
    what_to_do = "split long texts into a row per passage to find what is beyond"
    assert first == f"11 rows were truncated to 6 tokens, the model's limit; {what_to_do}"
    assert second.endswith("12 vectors of 8 dimensions in 2 shards")


# ---- going on -----------------------------------------------------------------------------------------------------


@contextmanager
def stopped_after(count, error):
    """Let a run end with an exception after some shards."""
    encode = Worker.encode

    def encode_some(self, work):
        if work.piece.number >= count:
            raise error
        return encode(self, work)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "encode", encode_some)
        yield


def test_a_stopped_run_goes_on(run, corpus, tmp_path):
    run(corpus, tmp_path / "straight")
    with stopped_after(2, Interrupted(15, "after 20 of 48 rows")):
        done = run(corpus, tmp_path / "vectors")
    assert done.code == 128 + 15
    assert done.err == "SIGTERM after 20 of 48 rows: state saved; run the same command again to resume\n"
    assert len(shards(tmp_path / "vectors")) == 2
    assert "not finished; run the same `cse embed` again" in search_refused(tmp_path / "vectors")
    first = {shard: shard.stat().st_mtime_ns for shard in shards(tmp_path / "vectors")}
    done = run(corpus, tmp_path / "vectors")
    assert done.err.endswith("48 vectors of 8 dimensions in 5 shards, 20 of them from earlier runs\n")
    assert {shard: shard.stat().st_mtime_ns for shard in first} == first
    assert outputs(tmp_path / "vectors") == outputs(tmp_path / "straight")


def search_refused(folder) -> str:
    with pytest.raises(CseError) as error:
        open_vectors(str(folder))
    return str(error.value)


def test_a_single_shard_needs_no_ray(cse, bundle, corpus, tmp_path, monkeypatch):  # noqa: F811
    def no_ray(*_):
        raise CseError("Ray is wanted")

    monkeypatch.setattr("cse.scale.corpus.embed.running_ray", no_ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def embed(*options):
        return cse("embed", corpus, "--out", tmp_path / "out", "--model", bundle, "--provider", "cpu", *options)

    assert "Ray is wanted" in embed("--shard-rows", 10).refused()
    assert "Ray is wanted" in embed("--again", "--workers", 1).refused()
    assert embed("--again").err.endswith("48 vectors of 8 dimensions in 1 shard\n")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert "Ray is wanted" in embed("--again").refused()


def test_a_full_disk_leaves_whole_shards(run, corpus, tmp_path):
    run(corpus, tmp_path / "straight")
    with full_disk(1000):  # the plan fits, a shard does not
        done = run(corpus, tmp_path / "vectors")
    assert "no space left while writing" in done.refused()
    assert "part-000000.parquet" in done.refused()
    assert sorted(outputs(tmp_path / "vectors")) == ["plan.json"]
    run(corpus, tmp_path / "vectors")
    assert outputs(tmp_path / "vectors") == outputs(tmp_path / "straight")


def test_something_else_is_refused_until_again(run, corpus, tmp_path):
    out = tmp_path / "vectors"
    run(corpus, out)
    expected = outputs(out)
    for options, what in (
        (["--batch-size", 3], "batch_size was None, now 3"),
        (["--raw"], "normalize was True, now False"),
        (["--keep-text"], "keep_text was False, now True"),
    ):
        line = run(corpus, out, *options).refused()
        assert line == f"{out}: made from different input: {what}; use another --out, or --again to start over"
    write_txt(corpus, TEXTS[:12])
    assert "corpus.txt has changed" in run(corpus, out).refused()
    assert "this machine has" in run(corpus, out, "--again", "--workers", 5000).refused()
    corpus.write_bytes(b"\xff")
    assert "corpus.txt:1: byte 0xff is not utf-8" in run(corpus, out, "--again").refused()
    assert outputs(out) == expected, "what is refused removes nothing"
    write_txt(corpus, TEXTS[:12])
    assert run(corpus, out, "--again").err.endswith("12 vectors of 8 dimensions in 2 shards\n")
    assert len(shards(out)) == 2


# ---- what is refused ----------------------------------------------------------------------------------------------


def test_places_that_do_not_do(run, cse, corpus, tmp_path, bundle):  # noqa: F811
    assert "the corpus is inside the output folder" in run(corpus, tmp_path).refused()
    assert "corpus.txt: a file; name a folder" in run(write_txt(tmp_path / "in/a.txt", ["a"]), corpus).refused()
    assert "no such folder (--model); did you mean" in run(corpus, tmp_path / "x", "--model", f"{bundle}s").refused()
    assert "no bundle here" in run(corpus, tmp_path / "x", "--model", tmp_path).refused()


@pytest.mark.parametrize("name", ["part-000000.parquet", ".drafts/notes.txt"])
def test_a_folder_of_other_things_is_refused_and_stays_as_it_was(run, corpus, tmp_path, name):
    mine = tmp_path / "mine" / name
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"mine")
    for options in ([], ["--again"]):
        line = run(corpus, tmp_path / "mine", *options).refused()
        assert "holds files that `cse embed` did not put there" in line
        assert mine.read_bytes() == b"mine"
        assert [path for path in (tmp_path / "mine").rglob("*") if path.is_file()] == [mine], "not even a lock"


def test_a_bad_line_is_named_before_anything_is_written(run, tmp_path):
    rows = [json.dumps({"text": text}) for text in TEXTS]
    path = write_txt(tmp_path / "a.jsonl", [*rows, "{"])
    assert "a.jsonl:49: not valid JSON" in run(path, tmp_path / "vectors").refused()
    assert outputs(tmp_path / "vectors") == {}


def test_vectors_that_are_not_finite(run, tmp_path):
    path = write_txt(tmp_path / "a.txt", [*TEXTS, "a bad mat"])
    assert "its embedding is not finite (text starts 'a bad mat')" in run(path, tmp_path / "vectors").refused()
    assert len(shards(tmp_path / "vectors")) == 4


def test_two_runs_do_not_write_one_folder(run, corpus, tmp_path):
    from filelock import FileLock

    (tmp_path / "vectors").mkdir()
    with FileLock(tmp_path / "vectors/.cse-lock"):
        assert "another `cse embed` or `cse index` writes here" in run(corpus, tmp_path / "vectors").refused()


# ---- search -------------------------------------------------------------------------------------------------------


@pytest.fixture
def vectors(run, corpus, tmp_path):
    """A folder of vectors with text and an index."""
    done = run(corpus, tmp_path / "vectors", "--keep-text", "--index")
    assert "an exact index of 48 vectors and their words" in done.err
    return tmp_path / "vectors"


def test_search_for_people(cse, vectors):  # noqa: F811
    done = cse("search", vectors, "the cat", "-k", 1, "--mode", "vectors")
    assert done.out == "   1   1.0000  46  the cat\n"
    assert cse("search", vectors, "the cat", "-k", 500).out.count("\n") == 48


def test_stored_text_commands_no_terminal(cse, run, tmp_path):  # noqa: F811
    text = "the \x1b[2J\x9b2J\x07cat\t\u202edog\u2028 \u540d\u524d \U0001f600 \u0939\u093f"
    rows = [{"id": "\x1b]0;title\x07", "text": text}]
    run(
        write_jsonl(tmp_path / "corpus.jsonl", rows),
        tmp_path / "vectors",
        "--keep-text",
        "--id-column",
        "id",
        "--index",
    )
    search = ("search", tmp_path / "vectors", "\x1b[2Jcat", "dog")
    for done in (cse(*search), cse(*search, "--json")):
        assert done.code == 0, done.err
        assert not set(done.out) & set("\x1b\x9b\x07\t\u202e\u2028"), repr(done.out)
        assert "\u540d\u524d \U0001f600 \u0939\u093f" in done.out, "text of every script stays"
    assert json.loads(done.out.splitlines()[0])["query"] == "\x1b[2Jcat"
    (hit,) = json.loads(done.out.splitlines()[1])["hits"]
    assert (hit["id"], hit["text"]) == (rows[0]["id"], text), "JSON says the same in escapes"


@pytest.mark.parametrize("out", ["X/new/..", "home", "clone"])
def test_no_corpus_is_embedded_over_what_is_there(run, corpus, tmp_path, monkeypatch, out):
    (tmp_path / "X").mkdir()
    (tmp_path / "X/manifest.json").write_text("mine")
    for place in ("home", "clone/.git"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    before = contents(tmp_path)
    line = run(corpus, tmp_path / out).refused()
    assert "did not put there (manifest.json)" in line if out.startswith("X") else "another" in line
    assert contents(tmp_path) == before


def test_a_query_needs_the_same_model(cse, vectors, bundle, tmp_path):  # noqa: F811
    moved = bundle.rename(tmp_path / "moved")
    assert f"{bundle}: no such folder (--model)" in cse("search", vectors, "dog").refused()
    assert cse("search", vectors, "dog", "--model", moved).code == 0
    tree = json.loads((moved / "bundle.json").read_text())
    (moved / "bundle.json").write_text(json.dumps(sealed(tree | {"max_length": 5})))
    assert "not the model that made" in cse("search", vectors, "dog", "--model", moved).refused()


def test_folders_without_vectors(cse, vectors, tmp_path):  # noqa: F811
    for command in (("search", tmp_path / "vectros", "dog"), ("index", tmp_path / "vectros")):
        assert "vectros: no " in (line := cse(*command).refused())
        assert "did you mean" in line
    shards(vectors)[1].unlink()
    assert "part-000001.parquet: missing; run `cse embed` again" in cse("index", vectors).refused()
    assert cse("search", vectors, "dog").code == 0, "the index before is as it was"


# ---- task texts ---------------------------------------------------------------------------------------------------


@pytest.fixture
def asymmetric(tmp_path):
    """A bundle with task texts for queries and passages."""
    role_texts = {"query": "query: ", "passage": "passage: "}
    return write_bundle_of_words(tmp_path / "asymmetric", [*TEXTS, *role_texts.values()], texts=role_texts)


def test_rows_and_queries_get_the_task_text_of_their_roles(run, cse, corpus, tmp_path, asymmetric):  # noqa: F811
    encoder = OnnxEncoder(asymmetric, provider="cpu")
    assert run(corpus, tmp_path / "vectors", "--model", asymmetric, "--role", "passage", "--index").code == 0
    rows = encoder.encode(TEXTS, role="passage")
    np.testing.assert_allclose(
        np.concatenate([pq.read_table(shard)["embedding"].to_pylist() for shard in shards(tmp_path / "vectors")]),
        rows,
        atol=1e-6,
    )
    query = TEXTS[3]
    for options, role in (([], "query"), (["--role", "passage"], "passage")):
        done = cse("search", tmp_path / "vectors", query, "-k", 2, "--json", *options)
        best = np.sort(rows @ encoder.encode(query, role=role))[::-1][:2]
        found = [hit["cosine"] for hit in json.loads(done.out)["hits"]]
        np.testing.assert_allclose(found, best, atol=1e-5)


def test_an_unknown_role_is_refused_before_the_corpus_is_read(run, tmp_path, asymmetric):
    corpus = tmp_path / "broken.txt"
    corpus.write_bytes(b"\xff\xfe\xff")
    done = run(corpus, tmp_path / "vectors", "--model", asymmetric, "--role", "pasage")
    assert (done.code, done.err) == (
        2,
        "error: role: 'pasage' is not known; one of query, passage; did you mean 'passage'?\n",
    )
