"""`cse adapt` on documents: queries are adapted, documents keep their vectors, and judged queries choose."""

import json
import re
from random import Random

import numpy as np
import pytest

from cse.adapt.documents import Judged
from cse.adapt.ladder import DOCUMENTS, LABELS
from cse.adapt.run import did_worse
from cse.data.documents import read_documents, whole_document
from cse.data.store import PreparedData
from cse.data.tasks.beir import read_beir
from cse.evaluation.comparison import Compared, Comparison
from cse.evaluation.record import ITEMS_FILE, read_items
from cse.ledger import Ledger
from cse.model.sentence_encoder import SentenceEncoder, load_bare
from cse.runtime.kept_vectors import KeptVectors
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.settings.data import DataSettings
from tests.parts import refusal
from tests.rows import write_lines, write_objects
from tests.search.corpora import rows_of
from tests.tiny import WORDS

QUICK = ("-s", "train.max_length=16", "-s", "train.batch_size=16", "-s", "prompt.length=2", "-s", "data.stand_ins=3")


def write_search(folder, documents, queries):
    """A search collection: queries by the number of their document."""
    rows = ({"_id": f"d{n}", "title": title, "text": text} for n, (title, text) in enumerate(documents))
    write_objects(folder / "corpus.jsonl", rows)
    write_objects(folder / "queries.jsonl", ({"_id": f"q{n}", "text": text} for n, (text, _) in enumerate(queries)))
    judgements = (f"q{n}\td{document}\t1" for n, (_, document) in enumerate(queries))
    write_lines(folder / "qrels/test.tsv", ["query-id\tcorpus-id\tscore", *judgements])


def drawn(count: int = 24) -> list[tuple[str, str]]:
    random = Random(0)
    sentence = [" ".join(random.sample(WORDS, 5)).capitalize() for _ in range(3 * count)]
    titles = [" ".join(random.sample(WORDS, 3)) for _ in range(count)]
    return [(title, ". ".join(sentence[3 * n : 3 * n + 3]) + ".") for n, title in enumerate(titles)]


@pytest.fixture
def searched(place):
    """A folder with settings, and a search collection of 24 documents with 16 judged queries."""
    documents = drawn()
    queries = [(" ".join(documents[n][1].lower().split()[2:6]), n) for n in range(16)]
    write_search(place / "my-search", documents, queries)
    return place


def test_queries_are_adapted_and_documents_keep_their_vectors(cse, searched, tiny_folders):
    command = ("adapt", "my-search/corpus.jsonl", "--task", "my-search", "--out", "out", *QUICK)
    done = cse(*command)
    assert done.code == 0, done.err
    assert "their titles and sentences stand in for queries" in done.err and "prompts" not in done.err
    lines = done.out.splitlines()
    assert Ledger(searched / "out/ledger").read("choice").result == "query_map", "nothing chooses"
    items = [read_items(searched / f"out/records/{name}" / ITEMS_FILE) for name in ("query_map", "backbone")]
    gain = np.subtract(*(one["tasks/my-search"]["nDCG@10 with words"] for one in items)).mean()
    shipped = "query_map (adapted queries)" if gain > 0 else "the bare backbone, since adapted queries found no more"
    assert any(line.startswith(f"in the bundle: {shipped}") for line in lines)
    texts = [text for _, text in drawn()]
    bare, kept = SentenceEncoder.load(tiny_folders["bert"]), load_bare(str(tiny_folders["bert"]))
    adapted = SentenceEncoder.load(searched / "out/runs/query_map/checkpoint")
    assert np.array_equal(adapted.encode(texts, role="passage"), bare.encode(texts)), "to the bit"
    assert not np.allclose(adapted.encode(texts, role="query"), bare.encode(texts), atol=1e-3)
    bundle = OnnxEncoder(searched / "out/bundle", provider="cpu")
    assert np.allclose(bundle.encode(texts), bare.encode(texts), atol=1e-5)
    again = cse(*command)
    assert again.code == 0 and "making" not in again.err and again.out in done.out
    found = cse("search", "out/index", texts[3], "-k", "24")
    assert {line.split()[6] for line in found.out.splitlines()} == {f"d{n}" for n in range(24)}, found.err
    rows = rows_of("out/index")
    indexed = rows["embedding"].combine_chunks().flatten().to_numpy().reshape(len(rows), -1)
    kept.kept = KeptVectors(searched / "out/vectors")
    encoded = kept.encode(rows["text"].to_pylist())
    assert np.array_equal(indexed, encoded), "encoded once, to measure; another graph's differ in the last digits"


def test_without_judged_queries_nothing_is_claimed(cse, searched):
    for number, (title, text) in enumerate(drawn(6)):
        write_lines(searched / f"manual/{number}.md", [f"# {title}", "", text])
    done = cse("adapt", "manual", "--out", "out", *QUICK)
    assert done.code == 0, done.err
    assert "\nThe bare backbone ships: no judged query says what finds more." in done.out
    assert "\nin the bundle: the bare backbone\n" in done.out
    assert "making adapted queries" not in done.err and not (searched / "out/records").exists()
    pytest.importorskip("lancedb")
    found = cse("search", "out/index", "red cat", "-k", "6")
    assert {line.split()[6] for line in found.out.splitlines()} == {f"{n}.md" for n in range(6)}, "paths are ids"


@pytest.mark.slow
def test_half_of_the_judged_queries_choose_and_the_other_half_is_measured(cse, searched):
    command = ("adapt", "my-search/corpus.jsonl", "--task", "my-search", "--dev-queries", "my-search", *QUICK)
    command = (*command, "-s", "train.dev_measure=nDCG@10")  # by vectors alone these queries gain
    done = cse(*command, "--out", "out", "--budget", "20m")
    assert done.code == 0, done.err
    assert "judged queries choose, and are trained on then" in done.err
    dev = read_beir(searched / "out/judged/dev/my-search", "dev").queries
    measured = read_beir(searched / "out/judged/measured/my-search", "measured").queries
    assert len(dev) + len(measured) == 16 and not {*dev} & {*measured} and min(len(dev), len(measured)) > 1
    assert f"{len(measured)} items" in done.out
    tried = re.findall(r"^  (the bare|adapted).* dev ([\d.]+)(.*)$", done.out, re.MULTILINE)
    assert len(tried) == 2
    best = max(tried, key=lambda one: float(one[1]))
    assert [one for one in tried if "(chosen)" in one[2]] == [best]
    if best[0] == "adapted":
        data = PreparedData(searched / "out/all_rows/prepared")
        assert {*data.of("judged").train["sent0"].to_pylist()} == {*dev}
        assert not {*measured} & {*data.train["sent0"].to_pylist(), *data.of("judged").train["sent0"].to_pylist()}
        assert "was trained again, on them too" in done.out
    again = cse(*command, "--out", "out", "--budget", "20m")
    assert again.code == 0 and "making" in done.err and "making" not in again.err and again.out in done.out


@pytest.mark.parametrize(("gain", "kind", "fell"), [
    (0.5, DOCUMENTS, False), (0.0, DOCUMENTS, True), (-0.1, DOCUMENTS, True), (-0.1, LABELS, False),
])  # fmt: skip
def test_a_search_without_a_gain_keeps_the_bare_backbone(gain, kind, fell):
    """Elsewhere what is no worse than chance can show is kept."""
    found = Comparison(50, 50 + gain, gain - 1, gain + 1, 0.5, 20, (1, 1))
    assert did_worse(Compared("t", "nDCG@10", True, found), kind) is fell


def judged(place, **data) -> Judged:
    known = {"source": "files", "view": "documents", "train_path": "my-search/corpus.jsonl", "dev_path": "my-search"}
    return Judged(DataSettings(**(known | data)), place / "out")


def test_pairs_hold_the_documents_as_the_collection_does_and_halves_are_drawn_by_the_text_alone(searched):
    found = judged(searched)
    (searched / "out").mkdir()
    assert found.write() == "16 judged queries choose, and are trained on then (16 pairs)"
    pairs = [json.loads(line) for line in (searched / "out/judged/pairs.jsonl").read_text().splitlines()]
    documents = [whole_document(each) for each in read_documents(searched / "my-search/corpus.jsonl")]
    assert [pair["sent1"] for pair in pairs] == documents[:16]
    assert found.choosing == {} and found.training["data.more"][0]["weight"] == 0.5
    found = judged(searched, task_path="my-search")
    found.write()
    first = read_beir(searched / "out/judged/dev/my-search", "dev")
    before = read_beir(searched / "my-search", "all")
    assert first.documents == before.documents
    for query, text in enumerate(first.queries):
        relevant = before.document[before.query == before.queries.index(text)]
        assert first.document[first.query == query].tolist() == relevant.tolist()
    path = searched / "my-search/queries.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    write_objects(path, (row | {"text": f"{row['text'].upper()}?!"} for row in rows[::-1]))
    found.write()
    again = read_beir(searched / "out/judged/dev/my-search", "dev").queries
    assert {*again} == {f"{text.upper()}?!" for text in first.queries}, "neither order nor a question mark matters"


def test_queries_of_other_documents_or_that_are_measured_are_refused(searched):
    write_search(searched / "other", drawn(40)[24:], [("cat sat", 0), ("dog bird", 1), ("red house", 2)])
    write_search(searched / "both", drawn(), [("cat sat", 0), (read_beir(searched / "my-search", "t").queries[5], 1)])
    write_search(searched / "few", drawn(), [("cat sat", 0), ("dog bird", 1)])
    for paths, says in (
        ({"dev_path": "other"}, "--dev-queries: other: 3 of 3 judged documents are not among those of my-search"),
        ({"task_path": "both"}, "1 of 16 queries are measured by --task too, and what is measured chooses nothing"),
        ({"dev_path": "few", "task_path": "few"}, "2 queries are too few to choose by one half and to measure"),
    ):
        assert says in refusal(judged(searched, **paths).write)
    assert not (searched / "out").exists()
