"""Files of small tasks."""

from pathlib import Path

from tests.rows import write_lines, write_objects

TREC = {
    "corpus.jsonl": [
        {"_id": "d1", "title": "Herons", "text": "Herons wait in shallow water."},
        {"_id": "d2", "title": "Storks", "text": "They nest on roofs."},
        {"_id": "d3", "text": "A pump moves water."},
    ],
    "queries.jsonl": [{"_id": "q1", "text": "birds that wait"}, {"_id": "q2", "text": "machines"}],
    "qrels/test.tsv": [("q1", "d1", 2), ("q1", "d2", 1), ("q2", "d3", 1)],
}
BANK = {
    "train.csv": [("where is my card", "card"), ("card is late", "card"), ("what rate", "rate"), ("best rate", "rate")],
    "test.csv": [("card lost", "card"), ("rate today", "rate"), ("rate of exchange", "rate")],
}


def write_beir(folder: Path, **changes) -> Path:
    """Write ``TREC``; ``changes`` replace a file's records by its stem."""
    for name, records in TREC.items():
        rows = changes.get(Path(name).stem, records)
        if name.endswith(".jsonl"):
            write_objects(folder / name, rows)
        else:
            write_lines(folder / name, ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in rows)])
    return folder


def write_labelled(folder: Path, header: str = "text,category", **changes) -> Path:
    """Write ``BANK``; ``changes`` replace a file's rows by its stem."""
    for name, records in BANK.items():
        rows = changes.get(Path(name).stem, records)
        write_lines(folder / name, [header, *(",".join(row) for row in rows)])
    return folder
