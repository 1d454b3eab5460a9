"""`cse adapt` on documents: queries are adapted, documents keep their vectors, and judged queries choose."""

from __future__ import annotations

import json
from random import Random

import numpy as np
import pytest

from cse.adapt.documents import Judged
from cse.adapt.ladder import DOCUMENTS, LABELS
from cse.adapt.look import STAND_INS, look
from cse.adapt.models import Models
from cse.adapt.run import did_worse
from cse.data.documents import read_documents, whole_document
from cse.data.store import PreparedData
from cse.data.tasks.beir import read_beir
from cse.errors import CseError
from cse.evaluation.comparison import Compared, Comparison
from cse.evaluation.record import ITEMS_FILE, read_items
from cse.ledger import Ledger
from cse.model.sentence_encoder import SentenceEncoder, load_bare
from cse.runtime.kept_vectors import KeptVectors
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.settings.data import DataSettings
from tests.cli.conftest import cse  # noqa: F401 - a fixture
from tests.cli.workspace import write_params
from tests.search.corpora import rows_of
from tests.tiny import WORDS

QUICK = ("-s", "train.max_length=16", "-s", "train.batch_size=16", "-s", "prompt.length=2", "-s", "data.stand_ins=3")


def write_search(folder, documents, queries):
    """A search collection: queries by the number of their document."""
    (folder / "qrels").mkdir(parents=True)
    rows = [{"_id": f"d{n}", "title": title, "text": text} for n, (title, text) in enumerate(documents)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    rows = [{"_id": f"q{n}", "text": text} for n, (text, _) in enumerate(queries)]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    lines = [f"q{n}\td{document}\t1\n" for n, (_, document) in enumerate(queries)]
    (folder / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines), encoding="utf-8")


def drawn(count: int = 24) -> list[tuple[str, str]]:
    random = Random(0)
    sentence = [" ".join(random.sample(WORDS, 5)) for _ in range(3 * count)]
    titles = [" ".join(random.sample(WORDS, 3)) for _ in range(count)]
    return [
        (titles[n], ". ".join(text.capitalize() for text in sentence[3 * n : 3 * n + 3]) + ".") for n in range(count)
    ]


@pytest.fixture
def place(tiny_folders, tmp_path, monkeypatch):
    """A folder with settings, and a search collection of 24 documents with 16 judged queries."""
    monkeypatch.chdir(tmp_path)
    write_params(tmp_path / "params.yaml", tiny_folders["bert"])
    documents = drawn()
    queries = [(" ".join(documents[n][1].lower().split()[2:6]), n) for n in range(16)]
    write_search(tmp_path / "my-search", documents, queries)
    return tmp_path


# ---- the whole way -------------------------------------------------------------------------------------------------


def test_queries_are_adapted_and_documents_keep_their_vectors(cse, place, tiny_folders):  # noqa: F811
    done = cse("adapt", "my-search/corpus.jsonl", "--task", "my-search", "--out", "out", *QUICK)
    assert done.code == 0, done.err
    assert "their titles and sentences stand in for queries" in done.err and "prompts" not in done.err
    lines = done.out.splitlines()
    assert sum(line.startswith("my-search nDCG@10: words alone ") for line in lines) == 1
    assert any(line.startswith("  my-search nDCG@10 with words: ") and "16 items" in line for line in lines)
    assert not any(line.startswith("  my-search nDCG@10 of words") for line in lines), "nothing changes the words"
    assert Ledger(place / "out/ledger").read("choice").result == "query_map", "nothing chooses"
    gain = np.subtract(
        *(
            read_items(place / f"out/records/{name}" / ITEMS_FILE)["my-search"]["nDCG@10 with words"]
            for name in ("query_map", "backbone")
        )
    ).mean()
    shipped = "query_map (adapted queries)" if gain > 0 else "the bare backbone, since adapted queries found no more"
    assert any(line.startswith(f"in the bundle: {shipped}") for line in lines)
    texts = [text for _, text in drawn()]
    bare = SentenceEncoder.load(tiny_folders["bert"])
    bare_backbone = load_bare(str(tiny_folders["bert"]))
    adapted = SentenceEncoder.load(place / "out/runs/query_map/checkpoint")
    assert np.array_equal(adapted.encode(texts, role="passage"), bare.encode(texts)), "to the bit"
    assert not np.allclose(adapted.encode(texts, role="query"), bare.encode(texts), atol=1e-3)
    bundle = OnnxEncoder(place / "out/bundle", provider="cpu")
    assert np.allclose(bundle.encode(texts), bare.encode(texts), atol=1e-5)
    again = cse("adapt", "my-search/corpus.jsonl", "--task", "my-search", "--out", "out", *QUICK)
    assert again.code == 0 and "making" not in again.err and again.out in done.out
    found = cse("search", "out/index", texts[3], "-k", "24")
    assert {line.split()[6] for line in found.out.splitlines()} == {f"d{n}" for n in range(24)}, found.err
    rows = rows_of("out/index")
    indexed = rows["embedding"].combine_chunks().flatten().to_numpy().reshape(len(rows), -1)
    bare_backbone.kept = KeptVectors(place / "out/vectors")
    kept = bare_backbone.encode(rows["text"].to_pylist())
    assert np.array_equal(indexed, kept), "encoded once, to measure; another graph's differ in the last digits"
    measured = cse("search", "out/index", "--task", "my-search")
    assert measured.code == 0, measured.err


@pytest.mark.parametrize("judged", [(), ("--dev-queries", "my-search", "--budget", "1s")])
def test_documents_are_encoded_once(cse, place, monkeypatch, judged):  # noqa: F811
    rows: list[tuple[int, ...]] = []
    embed = SentenceEncoder.embed

    def counting(self, ids, mask, constants=None):
        if self.post is None and self.prompt is None:  # the bare backbone, as such or as the side of documents
            rows.extend(tuple(one[some > 0].tolist()) for one, some in zip(ids, mask, strict=True))
        return embed(self, ids, mask, constants)

    monkeypatch.setattr(SentenceEncoder, "embed", counting)
    monkeypatch.setattr(Models, "export", lambda *_: None)  # its check encodes some of them again
    done = cse("adapt", "my-search/corpus.jsonl", "--task", "my-search", "--out", "out", *QUICK, *judged)
    assert done.code == 0 and "no index: " in done.out, done.err
    assert len(rows) == len(set(rows)) > 3 * 24, "stand-ins, documents and queries: trained on, and measured twice"


def test_without_judged_queries_nothing_is_claimed(cse, place):  # noqa: F811
    (place / "manual").mkdir()
    for number, (title, text) in enumerate(drawn(6)):
        (place / f"manual/{number}.md").write_text(f"# {title}\n\n{text}\n", encoding="utf-8")
    done = cse("adapt", "manual", "--out", "out", *QUICK)
    assert done.code == 0, done.err
    assert "\nThe bare backbone ships: no judged query says what finds more." in done.out
    assert "\nin the bundle: the bare backbone\n" in done.out
    assert "making adapted queries" not in done.err and not (place / "out/records").exists()
    pytest.importorskip("lancedb")
    found = cse("search", "out/index", "red cat", "-k", "6")
    assert {line.split()[6] for line in found.out.splitlines()} == {f"{n}.md" for n in range(6)}, "paths are ids"


@pytest.mark.slow
def test_half_of_the_judged_queries_choose_and_the_other_half_is_measured(cse, place):  # noqa: F811
    command = ("adapt", "my-search/corpus.jsonl", "--task", "my-search", "--dev-queries", "my-search", *QUICK)
    command = (*command, "-s", "train.dev_measure=nDCG@10")  # by vectors alone these queries gain
    done = cse(*command, "--out", "out", "--budget", "20m")
    assert done.code == 0, done.err
    assert "judged queries choose, and are trained on then" in done.err
    dev = read_beir(place / "out/judged/dev/my-search", "dev").queries
    measured = read_beir(place / "out/judged/measured/my-search", "measured").queries
    assert len(dev) + len(measured) == 16 and not {*dev} & {*measured} and min(len(dev), len(measured)) > 1
    assert f"{len(measured)} items" in done.out
    lines = done.out.splitlines()
    tried = [line for line in lines if line.startswith(("  the bare", "  adapted"))]
    assert [line.partition(":")[0].strip() for line in tried] == [
        "the bare backbone", "adapted queries", "adapted queries with prompts",
    ]  # fmt: skip
    scores = [float(line.split("dev ")[1].split(",")[0].split(" ")[0]) for line in tried]
    (chosen,) = (number for number, line in enumerate(tried) if "(chosen)" in line)
    assert scores[chosen] == max(scores)
    if chosen:
        data = PreparedData(place / "out/all_rows/prepared")
        assert {*data.of("judged").train["sent0"].to_pylist()} == {*dev}
        assert not {*measured} & {*data.train["sent0"].to_pylist(), *data.of("judged").train["sent0"].to_pylist()}
        assert "was trained again, on them too" in done.out
    again = cse(*command, "--out", "out", "--budget", "20m")
    assert again.code == 0 and "making" in done.err and "making" not in again.err and again.out in done.out


@pytest.mark.parametrize(("gain", "low", "searched", "fell"), [
    (0.5, -1.0, True, False), (0.0, -1.0, True, True), (-0.1, -1.0, True, True), (-0.1, -1.0, False, False),
])  # fmt: skip
def test_a_search_without_a_gain_keeps_the_bare_backbone(gain, low, searched, fell):
    """Elsewhere what is no worse than chance can show is kept."""
    one = Compared("t", "nDCG@10", True, Comparison(50, 50 + gain, gain + low, gain - low, 0.5, 20, (1, 1)))
    assert did_worse(one, DOCUMENTS if searched else LABELS) is fell


# ---- judged queries ------------------------------------------------------------------------------------------------


def judged(place, **data) -> Judged:
    known = {"source": "files", "view": "documents", "train_path": "my-search/corpus.jsonl", "dev_path": "my-search"}
    return Judged(DataSettings(**(known | data)), place / "out")


def test_pairs_hold_the_documents_as_the_collection_does(place):
    found = judged(place)
    (place / "out").mkdir()
    assert found.write() == "16 judged queries choose, and are trained on then (16 pairs)"
    pairs = [json.loads(line) for line in (place / "out/judged/pairs.jsonl").read_text().splitlines()]
    documents = [whole_document(each) for each in read_documents(place / "my-search/corpus.jsonl")]
    assert [pair["sent1"] for pair in pairs] == documents[:16]
    assert found.choosing == {} and found.training["data.more"][0]["weight"] == 0.5


def test_halves_are_drawn_by_the_text_alone(place):
    found = judged(place, task_path="my-search")
    (place / "out").mkdir()
    found.write()
    first = read_beir(place / "out/judged/dev/my-search", "dev")
    before = read_beir(place / "my-search", "all")
    assert first.documents == before.documents
    for query, text in enumerate(first.queries):
        relevant = before.document[before.query == before.queries.index(text)]
        assert first.document[first.query == query].tolist() == relevant.tolist()
    lines = (place / "my-search/queries.jsonl").read_text().splitlines()[::-1]
    (place / "my-search/queries.jsonl").write_text("\n".join(lines) + "\n")
    found.write()
    assert {*read_beir(place / "out/judged/dev/my-search", "dev").queries} == {*first.queries}
    marked = [json.loads(line) for line in lines]
    texts = [f"{row['text'].upper()}?!" for row in marked]
    written = (json.dumps(row | {"text": text}) + "\n" for row, text in zip(marked, texts, strict=True))
    (place / "my-search/queries.jsonl").write_text("".join(written))
    found.write()
    again = read_beir(place / "out/judged/dev/my-search", "dev").queries
    assert {*again} == {f"{text.upper()}?!" for text in first.queries}, "a question mark is no other question"


def test_queries_of_other_documents_or_that_are_measured_are_refused(place):
    documents = drawn(40)[24:]
    write_search(place / "other", documents, [("cat sat", 0), ("dog bird", 1), ("red house", 2)])
    (place / "out").mkdir()
    with pytest.raises(
        CseError, match=r"--dev-queries: other: 3 of 3 judged documents are not among those of my-search"
    ):
        judged(place, dev_path="other").write()
    write_search(place / "measured", drawn(), [("cat sat", 0), (read_beir(place / "my-search", "t").queries[5], 1)])
    with pytest.raises(
        CseError, match=r"1 of 16 queries are measured by --task too, and what is measured chooses nothing"
    ):
        judged(place, task_path="measured").write()
    write_search(place / "few", drawn(), [("cat sat", 0), ("dog bird", 1)])
    with pytest.raises(CseError, match="2 queries are too few to choose by one half and to measure by the other"):
        judged(place, dev_path="few", task_path="few").write()
    assert not (place / "out/judged").exists()


# ---- what is found -------------------------------------------------------------------------------------------------


def test_judged_queries_choose_by_what_the_default_search_finds(place):
    found = look([place / "my-search/corpus.jsonl"], judged=place / "my-search")
    assert found.settings["train.dev_measure"] == "nDCG@10 with words"


@pytest.mark.parametrize(("count", "most"), [(1400, 5), (3000, 2), (7000, 1), (20, 300)])
def test_as_many_stand_ins_as_make_some_thousand(tmp_path, count, most):
    rows = (json.dumps({"title": f"title {n}", "text": f"Text {n}."}) + "\n" for n in range(count))
    (tmp_path / "corpus.jsonl").write_text("".join(rows), encoding="utf-8")
    found = look([tmp_path / "corpus.jsonl"])
    assert found.kind == DOCUMENTS and found.settings["data.stand_ins"] == most
    assert most == 1 or STAND_INS <= count * most <= 10_000


def test_titles_alone_count_as_one_stand_in_each(tmp_path):
    rows = [{"title": f"title {n}", "text": "A sentence." if n % 2 else ""} for n in range(3000)]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert look([tmp_path / "corpus.jsonl"]).settings["data.stand_ins"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("titles.jsonl",), "none of the 3 documents has more than a title, so no sentence stands in for a query"),
        (("empty.jsonl",), "empty.jsonl: 0 documents with text; to be searched, name a folder or a table of two"),
        (("one.md",), "one.md: 1 document with text; to be searched, name a folder or a table of two"),
        (
            ("my-search/corpus.jsonl", "lines.txt"),
            "lines.txt: sentences beside documents; give more documents, or pairs",
        ),
        (("lines.txt", "--dev-queries", "my-search"), "--dev-queries: judged queries are for documents"),
        (
            ("my-search/corpus.jsonl", "--dev-queries", "nowhere"),
            "nowhere: no such file or folder; put data there (or change --dev-queries)",
        ),
        (("my-search/corpus.jsonl", "--dev-queries", "docs"), "--dev-queries: docs: a folder of corpus.jsonl, queries"),
    ],
)
def test_mistakes_are_one_line(cse, place, arguments, message):  # noqa: F811
    tables = {"titles": [("a title", "")] * 3, "empty": [("", "")] * 3}
    for name, rows in tables.items():
        lines = (json.dumps({"title": title, "text": text}) + "\n" for title, text in rows)
        (place / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    (place / "one.md").write_text("# A title\n\nAnd its text.\n", encoding="utf-8")
    (place / "lines.txt").write_text("one line\nanother line\n", encoding="utf-8")
    (place / "docs").mkdir()
    (place / "docs/a.md").write_text("text")
    done = cse("adapt", *arguments, "--out", "out")
    assert done.code == 2
    assert message in done.err.splitlines()[-1]


def test_of_many_documents_a_sample_is_trained_on(tmp_path, monkeypatch):
    records = [{"_id": str(n), "title": f"Part {n}", "text": "One sentence. Another one."} for n in range(9)]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    monkeypatch.setattr("cse.adapt.look._MOST_ROWS", 9)
    assert "data.max_rows" not in look([tmp_path / "corpus.jsonl"]).settings
    monkeypatch.setattr("cse.adapt.look._MOST_ROWS", 8)
    assert look([tmp_path / "corpus.jsonl"]).settings["data.max_rows"] == 8
