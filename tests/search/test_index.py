"""`cse index`: what it reads, keeps, updates, splits, refuses and says."""

import json
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from filelock import FileLock

from cse.errors import CseError
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.search.corpus import Columns, Corpus
from cse.search.index import index_corpus
from cse.search.passages import passages
from cse.search.rows import Choices, Maker
from cse.search.table import MODES, open_table, snippet
from cse.storage import Folder
from tests.cli.workspace import contents
from tests.parts import refusal
from tests.rows import write_lines, write_objects, write_parquet
from tests.runtime.conftest import write_bundle_of_words
from tests.search.corpora import answers, is_approximate, read_vectors, rows_of, sentences

TEXTS = [*sentences(45), "a", "the cat", "the"]


@pytest.fixture
def run(index, bundle):
    return lambda corpus, out, *options: index(corpus, out, bundle, *options)


@pytest.fixture
def corpus(tmp_path):
    return write_lines(tmp_path / "corpus.txt", TEXTS)


def read(path, **columns):
    """Ids and texts of a corpus."""
    return [(one.id, one.text) for one in Corpus(str(path), Columns(**columns), Folder("nowhere"))]


def test_usual_columns_need_no_names(tmp_path):
    rows = [{"_id": "a", "title": " The cat ", "body": "sat"}, {"_id": "b", "title": "a dog", "body": "a dog sat"},
            {"_id": "c", "title": None, "body": "mat"}, {"_id": "d", "title": "the mat", "body": ""}]  # fmt: skip
    path = write_objects(tmp_path / "a.jsonl", rows)
    titled = [("a", "The cat sat"), ("b", "a dog sat"), ("c", "mat"), ("d", "the mat")]
    assert read(path) == titled
    assert read(path, title="", id="") == list(enumerate(["sat", "a dog sat", "mat", ""]))
    named = read(write_objects(path, rows[:2]), text="title", id="body")
    assert named == [("sat", " The cat "), ("a dog sat", "a dog")]


def test_columns_are_kept_in_their_types(run, tmp_path):
    rows = {"id": [1, 2], "text": ["the cat", "a dog"], "n": pa.array([1, None], pa.int16()), "name": ["a", None],
            "f": pa.array([0.5, 2], pa.float32()), "paid": [True, None]}  # fmt: skip
    kept = [part for name in ("n", "f", "name", "paid") for part in ("--keep-column", name)]
    assert run(write_parquet(tmp_path / "a.parquet", rows), tmp_path / "out", *kept).code == 0
    table = rows_of(tmp_path / "out").select(["id", "text", "n", "f", "name", "paid"])
    assert [str(kind) for kind in table.schema.types] == ["int64", "string", "int64", "double", "string", "bool"]
    assert table.to_pylist() == [
        {"id": 1, "text": "the cat", "n": 1, "f": 0.5, "name": "a", "paid": True},
        {"id": 2, "text": "a dog", "n": None, "f": 2.0, "name": None, "paid": None},
    ]


NOTHING = ["", "  ", "-", "...", "N/A", "n.a.", "null", "\u3002\u2026", "\u200b", "\\N", "\u3164\u2800"]


def test_rows_that_say_nothing_are_counted_and_left_out(cse, run, tmp_path):
    texts = ["the cat", *NOTHING, "a dog", "\U0001f44d", "7", "nap"]
    done = run(write_objects(tmp_path / "a.jsonl", [{"text": text} for text in texts]), tmp_path / "out")
    assert "left out: 11 rows say nothing (empty, punctuation, N/A): ids 1, 2, 3, 4, 5, 6, 7, 8 and 3 more" in done.err
    hits = answers(cse, tmp_path / "out", "dog")[0]["hits"]
    assert {hit["id"]: hit["text"] for hit in hits} == {n: text for n, text in enumerate(texts) if text not in NOTHING}
    line = run(write_lines(tmp_path / "b.txt", ["-", "N/A"]), tmp_path / "none").refused()
    assert line.endswith("b.txt: no text says anything; name another column (--text-column)")


@pytest.mark.parametrize("kind", ["exact", "approximate"])
def test_a_second_run_embeds_what_is_new_or_changed_and_deletes_what_is_gone(cse, run, tmp_path, monkeypatch, kind):
    embedded, embed = [], Maker.embed
    monkeypatch.setattr(Maker, "embed", lambda self, new: embedded.extend(new.columns["text"]) or embed(self, new))
    rows = {f"it's {n}": text for n, text in enumerate(sentences(300))}
    path = tmp_path / "a.jsonl"

    def index(*options):
        embedded.clear()
        write_objects(path, [{"id": key, "text": text, "year": len(key)} for key, text in rows.items()])
        done = run(path, tmp_path / "out", "--keep-column", "year", "--kind", kind, *options)
        assert done.code == 0, done.err
        return done.err.splitlines()[-1].partition("; ")[2]

    assert index() == "300 added, 0 changed, 0 removed"
    assert (index(), embedded) == ("0 added, 0 changed, 0 removed", [])
    rows |= {"it's 7": "zebra the mat", "new": "a zebra", "it's 8": "-"}
    del rows["it's 9"]
    assert index() == "1 added, 1 changed, 2 removed"
    assert sorted(embedded) == ["a zebra", "zebra the mat"]
    assert is_approximate(tmp_path / "out") == (kind == "approximate")
    for mode in MODES:
        hits = answers(cse, tmp_path / "out", "zebra", "--mode", mode, "-k", 500)[0]["hits"]
        assert {hit["id"]: hit["text"] for hit in hits if "zebra" in hit["text"]} == {
            "it's 7": "zebra the mat", "new": "a zebra",
        }  # fmt: skip
        assert not {"it's 8", "it's 9"} & {hit["id"] for hit in hits}
    rows.clear()
    rows |= {"it's 7": "N/A", "it's 6": "a tram"}
    assert index("--changes") == "0 added, 1 changed, 1 removed"
    assert len(open_table(str(tmp_path / "out"))) == 298
    assert index() == "0 added, 0 changed, 297 removed"


def test_a_long_document_is_found_by_its_passage(cse, run, tmp_path, bundle):
    filler = "the cat sat on a mat " * 5
    texts = ["a dog sat", filler + "zebra dog dog dog dog " + filler, "the cat", "on a mat on a"]
    out = tmp_path / "out"
    said = run(write_objects(tmp_path / "a.jsonl", [{"text": text} for text in texts]), out).err
    assert "1 text was cut at 6 tokens" in said and "4 documents in " in said
    rows = rows_of(out).filter(pa.compute.equal(rows_of(out)["id"], 1))
    parts = passages(texts[1], [], 6)
    assert rows["text"].to_pylist() == parts and len(parts) > 10
    assert rows["passage"].to_pylist() == list(range(len(parts)))
    assert rows["document"].to_pylist() == [texts[1], *[None] * (len(parts) - 1)]
    vectors = OnnxEncoder(bundle, provider="cpu").encode(parts)
    best = vectors @ OnnxEncoder(bundle, provider="cpu").encode("dog dog dog")
    for mode in ("vectors", "hybrid"):
        hits = answers(cse, out, "dog dog dog", "--mode", mode, "--full")[0]["hits"]
        assert sorted(hit["id"] for hit in hits) == [0, 1, 2, 3], "a document once"
        hit = next(hit for hit in hits if hit["id"] == 1)
        assert (hit["passage"], hit["text"]) == (int(best.argmax()), parts[best.argmax()])
        assert hit["cosine"] == pytest.approx(best.max(), abs=1e-5)
        assert hit["document"] == texts[1]
    hits = answers(cse, out, "zebra", "--mode", "words")[0]["hits"]
    assert [(hit["id"], hit["text"]) for hit in hits] == [(1, texts[1])], "words are those of the document"
    hits = answers(cse, out, "zebra")[0]["hits"]
    assert hits[0]["id"] == 1 and hits[0]["bm25"] > 0


def test_two_runs_do_not_write_one_folder(run, corpus, tmp_path):
    (tmp_path / "out").mkdir()
    with FileLock(tmp_path / "out/.cse-lock"):
        assert "another `cse index` writes here" in run(corpus, tmp_path / "out").refused()


def test_no_corpus_is_indexed_over_what_is_there(run, corpus, tmp_path, monkeypatch):
    for place in ("home", "clone/.git", "work"):
        (tmp_path / place).mkdir(parents=True)
    for name in ("X/manifest.json", "parts/part-000000.parquet", "hidden/.drafts/notes.txt"):
        write_lines(tmp_path / name, ["mine"])
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    before = contents(tmp_path)
    for out, said in (
        *((out, "holds files that `cse index` did not put there") for out in ("parts", "hidden", "X/new/..")),
        ("home", "another"), ("clone", "another"),
    ):  # fmt: skip
        for options in ([], ["--again"]):
            assert said in run(corpus, tmp_path / out, *options).refused()
    assert contents(tmp_path) == before, "not even a lock"


def test_stored_text_commands_no_terminal(cse, run, tmp_path):
    text = "the \x1b[2J\x9b2J\x07cat\t\u202edog\u2028 \u540d\u524d \U0001f600 \u0939\u093f"
    rows = [{"id": "\x1b]0;title\x07", "text": text}]
    run(write_objects(tmp_path / "corpus.jsonl", rows), tmp_path / "out")
    search = ("search", tmp_path / "out", "\x1b[2Jcat", "dog")
    for done in (cse(*search), cse(*search, "--full"), cse(*search, "--full", "--json")):
        assert done.code == 0, done.err
        assert not set(done.out) & set("\x1b\x9b\x07\t\u202e\u2028"), repr(done.out)
        assert "\u540d\u524d \U0001f600 \u0939\u093f" in done.out, "text of every script stays"
    assert json.loads(done.out.splitlines()[0])["query"] == "\x1b[2Jcat"
    (hit,) = json.loads(done.out.splitlines()[1])["hits"]
    assert (hit["id"], hit["document"]) == (rows[0]["id"], text), "JSON says the same in escapes"


def test_rows_and_queries_get_the_task_text_of_their_roles(cse, corpus, tmp_path):
    role_texts = {"query": "query: ", "passage": "passage: "}
    asymmetric = write_bundle_of_words(tmp_path / "asymmetric", [*TEXTS, *role_texts.values()], texts=role_texts)
    encoder, out = OnnxEncoder(asymmetric, provider="cpu"), tmp_path / "out"
    run = ("index", corpus, "--out", out, "--model", asymmetric, "--device", "cpu", "--role")
    assert cse(*run, "passage").code == 0
    rows = encoder.encode(TEXTS, role="passage")
    np.testing.assert_allclose(read_vectors(out)[1], rows, atol=1e-6)
    for options, role in (([], "query"), (["--role", "passage"], "passage")):
        best = np.sort(rows @ encoder.encode(TEXTS[3], role=role))[::-1][:2]
        hits = answers(cse, out, TEXTS[3], "-k", 2, "--mode", "vectors", *options)[0]["hits"]
        np.testing.assert_allclose([hit["cosine"] for hit in hits], best, atol=1e-5)


def test_rows_of_folders_pages_and_beir(tmp_path):
    for name, texts in (("b.txt", ["3"]), ("a.txt", ["0", "1", "2"]), ("sub/a.txt", ["4", "5"]), ("c.txt", [])):
        write_lines(tmp_path / "lines" / name, texts)
    for name in ("README.txt", ".hidden.txt", "_temporary/x.txt", "notes.xml"):
        write_lines(tmp_path / "lines" / name, ["no row"])
    assert read(tmp_path / "lines") == [(number, str(number)) for number in range(6)]
    write_lines(tmp_path / "manual/a.md", ["# Cards", "", "A card.", "", "## Lost", "", "Call us."])
    write_lines(tmp_path / "manual/sub/b.html", ["<title>Fees</title><body><p>Fees of cards are low.</p></body>"])
    first, second = Corpus(str(tmp_path / "manual"), Columns(), Folder("nowhere"))
    assert (first.id, second.id) == ("a.md", "sub/b.html")
    assert first.text.startswith("Cards") and "Lost Call us." in first.sections
    assert "Fees of cards are low." in second.text
    write_objects(tmp_path / "beir/corpus.jsonl", [{"_id": "d", "title": "A", "text": "b"}])
    write_objects(tmp_path / "beir/queries.jsonl", [{"_id": "q", "text": "c"}])
    assert read(tmp_path / "beir") == [("d", "A b")]


UNREADABLE = [
    ("a.jsonl", b'{"text": "a"}\n{"txt": "a"}', {}, "a.jsonl:2: no text in column 'text'; fill it in"),
    ("a.xml", b"text\na\n", {}, " file here (only a.xml)"),
    ("a.jsonl", b'{"text": "a", "id": "a"}\n{"text": "a", "id": 1}', {}, "a.jsonl:2: id column 'id' held string"),
    ("a.jsonl", b'{"text": "a", "id": 1}\n{"text": "a", "id": null}', {}, "a.jsonl:2: id column 'id' should hold"),
    ("a.jsonl", b'{"text": "a", "id": 9223372036854775808}', {}, "should hold whole numbers or text, found int"),
    ("a.parquet", {"texts": ["a"]}, {}, "no column 'text' (--text-column); did you mean 'texts'?; the columns are"),
    ("a.parquet", {"text": [1]}, {}, ":1: expected text, found int '1'"),
    ("a.parquet", {"text": ["a"], "key": [0.5]}, {"id": "key"}, "id column 'key' should hold whole numbers or text"),
    ("a.parquet", {"text": ["a"], "n": [[2]]}, {"kept": ("n",)}, "should hold text, numbers, true or false"),
    ("a.parquet", {"text": ["a"], "year": [2]}, {"kept": ("yaer",)}, "no column 'yaer' (--keep-column); did you mean"),
    ("a.parquet", {"text": ["a"]}, {"kept": ("text",)}, "--keep-column text: the index has its own column of that"),
    ("nothing", None, {}, "nothing: no such file or folder"),
    ("*.txt", None, {}, "no file matches"),
]


@pytest.mark.parametrize(("name", "content", "options", "said"), UNREADABLE, ids=[said for *_, said in UNREADABLE])
def test_what_cannot_be_read_is_named(tmp_path, name, content, options, said):
    path = tmp_path / name
    if isinstance(content, dict):
        write_parquet(path, content)
    elif content is not None:
        path.write_bytes(content)
    assert said in refusal(read, path, **options)


def test_a_bad_corpus_is_refused_before_anything_is_written(run, tmp_path):
    for name in ("a.txt", "a.jsonl"):
        write_lines(tmp_path / "corpus" / name, ['{"text": "a"}'])
    (tmp_path / "a.txt").write_bytes(b"a\nb\n\xff\n")
    for corpus, said in (
        (tmp_path / "a.txt", "a.txt:3: byte 0xff is not utf-8"),
        (tmp_path / "corpus", "several formats (jsonl, txt)"),
        ("nosuch://bucket/a.txt", "cannot be opened"),
    ):
        assert said in run(corpus, tmp_path / "out").refused()
    assert not (tmp_path / "out/index.lance").exists()


def test_what_makes_other_rows_is_refused_until_again_and_a_query_needs_the_model(cse, run, corpus, tmp_path, bundle):
    rows = [{"id": f"k{n}", "body": text, "n": n} for n, text in enumerate(TEXTS)]
    path, out, other = write_objects(tmp_path / "a.jsonl", rows), tmp_path / "out", tmp_path / "other"
    run(path, out)
    line = run(path, out, "--keep-column", "n").refused()
    assert line.startswith(f"{out}: made from different input: kept_column was []")
    assert "id_column was 'id', now None" in run(path, out, "--id-column", "").refused()
    assert "number the rows" in run(write_objects(tmp_path / "b.jsonl", [*rows, rows[3]]), out).refused()
    numbers = write_objects(tmp_path / "c.jsonl", [{"id": 1, "body": "the cat"}])
    assert "column 'id' holds int64, in" in run(numbers, out).refused()
    assert "have no ids, so they replace none" in run(corpus, out, "--changes").refused()
    assert run(path, out, "--again", "--keep-column", "n").code == 0
    write_bundle_of_words(other, TEXTS)
    assert "not the model that made" in cse("search", out, "dog", "--model", other).refused()
    line = cse("index", path, "--keep-column", "n", "--out", out, "--model", other, "--device", "cpu").refused()
    assert line.startswith(f"{out}: made from different input: the model is different; use another --out, or --again")
    moved = bundle.rename(tmp_path / "moved")
    assert f"{bundle}: no such folder (--model)" in cse("search", out, "dog").refused()
    assert cse("search", out, "dog", "--model", moved).code == 0


def test_passages_overlap_and_lose_nothing_and_a_snippet_stands_around_the_words():
    words = [f"w{n}" for n in range(1000)]
    found = passages(" ".join(words), [], 256)
    assert {len(passage.split()) for passage in found[:-1]} == {100}
    for one, other in pairwise(found):
        assert one.split()[-25:] == other.split()[:25]
    assert list(dict.fromkeys(" ".join(found).split())) == words
    assert passages("ignored", ["one two", "three"], 256) == ["one two", "three"], "sections stand for themselves"
    chinese = "\u4e2d\u6587" * 300
    assert 1 < len(passages(chinese, [], 256)) < 10 and max(map(len, passages(chinese, [], 256))) <= 250
    shown = snippet(f"{' '.join(words)} the invoices were wrong {' '.join(words)}", "wrong invoice")
    assert "invoices were wrong" in shown and len(shown.split()) == 32


def test_from_bucket_to_bucket(bucket, bundle, tmp_path, monkeypatch):
    texts = sentences(35)
    here = write_parquet(tmp_path / "a.parquet", {"id": [*range(35)], "text": texts}, 8)
    bucket.upload_file(str(here), "texts", "in/a.parquet")
    url = "s3://texts/out"

    def index(**choices):
        return index_corpus("s3://texts/in", url, str(bundle), Choices(provider="cpu", **choices))

    with pytest.raises(CseError, match="no index here; make one with `cse index TEXTS --out s3://"):
        open_table(url)
    assert index().documents == 35
    queries = OnnxEncoder(bundle, provider="cpu").encode([texts[10]])
    for mode in MODES:
        (hits,) = open_table(url).search([texts[10]], queries, 1, mode)
        assert sorted(hits[0].text.split()) == sorted(texts[10].split())
    later = write_parquet(tmp_path / "b.parquet", {"id": [34, 35], "text": ["the tram is late", "no"]}, 8)
    bucket.upload_file(str(later), "texts", "in/b.parquet")
    with pytest.raises(CseError, match="id 34 occurs twice"):
        index()
    bucket.delete_object(Bucket="texts", Key="in/a.parquet")
    done = index(changes=True)
    assert (done.documents, done.new, done.changed, done.gone) == (36, 2, 1, 0)
    (hits,) = open_table(url).search(["tram"], None, 1, "words")
    assert (hits[0].id, hits[0].text) == (34, "the tram is late")
    monkeypatch.setattr(Maker, "embed", None)
    assert index().gone == 34
    assert len(open_table(url)) == 2
