"""The files of a user that the pages name, from the sentences of source ``sample``: small, and made here."""

from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Literal

from cse.data.sample import sample_pairs, sample_rows
from cse.data.suite import STSB, YEARS
from tests.rows import write_lines, write_objects, write_table

LABELS, PER_LABEL = ("lost card", "exchange rate", "top up", "refund"), 24
PAIRS = 40  # every training and evaluation encodes them, with the default backbone


def write_user_files(folder: Path) -> None:
    """Write every file and folder that a page takes for the reader's own."""
    sentences = [text for (text,) in islice(sample_rows("sentences"), 160)]
    triplets = list(islice(sample_rows("triplets"), 160, 320))
    pairs = [row[:2] for row in triplets]
    for name in ("sentences.txt", "my-sentences.txt", "questions.txt"):
        write_lines(folder / name, sentences)
    for name in ("my-triplets.csv", "nli.csv"):
        write_table(folder / name, ("sent0", "sent1", "hard_neg"), triplets)
    write_table(folder / "pairs.csv", ("sentence1", "sentence2"), pairs)
    write_table(folder / "data/raw/more/nli.csv", ("sent0", "sent1", "hard_neg"), triplets[:40])
    write_table(folder / "intents.csv", ("text", "label"), _labelled(PER_LABEL, 320))
    for name in ("labelled-questions", "my-questions"):
        for part, rows in (("train", 8), ("test", 6)):
            write_table(folder / name / f"{part}.csv", ("text", "label"), _labelled(rows, first=100 * rows))
    write_table(folder / "tickets.csv", ("body", "queue"), zip(sentences[:20], cycle(("tickets", "plain"))))
    documents = [(f"Chapter {n}", " ".join(sentences[n : n + 8])) for n in range(0, 160, 8)]
    for name, chapters in (("manual", documents[::2]), ("handbook", documents)):
        for title, body in chapters:
            write_lines(folder / name / f"{title.lower().replace(' ', '-')}.md", [f"# {title}", "", body])
    for name in ("corpus.jsonl", "manual.jsonl", "my-search/corpus.jsonl"):
        write_objects(folder / name, [{"_id": f"d{n}", "title": t, "text": b} for n, (t, b) in enumerate(documents)])
    write_objects(folder / "my-search/queries.jsonl", [{"_id": f"q{n}", "text": sentences[8 * n]} for n in range(20)])
    judged = [("query-id", "corpus-id", "score"), *((f"q{n}", f"d{n}", "1") for n in range(20))]
    write_lines(folder / "my-search/qrels/test.tsv", ["\t".join(row) for row in judged])
    write_table(folder / "data/raw/train/rows.csv", ("sent0", "sent1", "hard_neg"), triplets)
    columns = ("sentence1", "sentence2", "score")
    write_table(folder / "data/raw/dev/pairs.csv", columns, _scored(PAIRS, "dev"))
    write_table(folder / "data/raw/evaluation/pairs.csv", columns, _scored(PAIRS))
    for name in ("tickets", "invoices"):  # domains of a bank
        write_table(folder / f"data/raw/{name}/train/rows.csv", ("sent0", "sent1", "hard_neg"), triplets[:80])
    _senteval(folder / "SentEval/data/downstream")


def _labelled(per_label: int, first: int) -> list[tuple[str, str]]:
    """Return texts that name their label, so that a label's texts are alike."""
    texts = islice(sample_rows("sentences"), first, first + per_label * len(LABELS))
    labels = [LABELS[n % len(LABELS)] for n in range(per_label * len(LABELS))]
    return [(f"{label}: {text}", label) for (text,), label in zip(texts, labels, strict=True)]


def _senteval(root: Path) -> None:
    """Write a part of SentEval with its published numbers of pairs: STS16 and STS-B, a few pairs again and again."""
    for subset, count in YEARS["STS16"].items():
        pairs = list(_scored(count))
        write_lines(root / f"STS/STS16-en-test/STS.input.{subset}.txt", [f"{one}\t{other}" for one, other, _ in pairs])
        write_lines(root / f"STS/STS16-en-test/STS.gs.{subset}.txt", [f"{score}" for _, _, score in pairs])
    for split, count in STSB.items():
        lines = [f"genre\tfile\tyear\t{n}\t{score}\t{a}\t{b}" for n, (a, b, score) in enumerate(_scored(count))]
        write_lines(root / f"STS/STSBenchmark/sts-{split}.csv", lines)


def _scored(count: int, part: Literal["dev", "test"] = "test") -> Iterator[tuple[str, str, float]]:
    """Return scored pairs; of the many of SentEval 20 are distinct, as each distinct sentence is encoded once."""
    found = sample_pairs(part)
    rows = zip(found.sentence1, found.sentence2, map(float, found.score), strict=True)
    return islice(cycle(islice(rows, count if count < 200 else 20)), count)
