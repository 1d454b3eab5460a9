"""How a task is recognised: by the files in its folder, or by the columns of its file.

=============== =======================================================================================
kind            layout
=============== =======================================================================================
retrieval       a folder with corpus.jsonl, queries.jsonl and qrels/ (BEIR)
labelled texts  a folder with train.* and test.*, or a file with the columns text and category (label, intent)
triplets        a file with the columns anchor, positive, negative
binary pairs    a file with the columns sentence1, sentence2, label; the labels are 0, 1, true, false
scored pairs    a file with the columns sentence1, sentence2, score
=============== =======================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cse.data.checks import listed
from cse.data.readers import USUAL_COLUMNS, contents
from cse.data.scored_file import USUAL_PAIR_COLUMNS
from cse.data.tables import TABLES
from cse.data.tasks.kinds import BINARY, LABELLED, SCORED, TRIPLETS
from cse.errors import CseError

_FIRST, _SECOND, _SCORE = USUAL_PAIR_COLUMNS
_LABEL = "label"
# names of each column, in the order in which they are looked for
COLUMNS: dict[str, tuple[tuple[str, ...], ...]] = {
    SCORED: (_FIRST, _SECOND, tuple(name for name in _SCORE if name != _LABEL)),
    BINARY: (_FIRST, _SECOND, (_LABEL, "is_duplicate")),
    TRIPLETS: (("anchor", "sent0"), ("positive", "sent1"), ("negative", "hard_neg")),
    LABELLED: tuple(tuple(dict.fromkeys(names)) for names in zip(*USUAL_COLUMNS["categories"], strict=True)),
}
CORPUS, QUERIES, JUDGEMENTS = "corpus.jsonl", "queries.jsonl", "qrels"
_BEIR = (CORPUS, QUERIES, JUDGEMENTS)
_LAYOUTS = "; ".join(
    ["a folder with corpus.jsonl, queries.jsonl and qrels", "a folder with train.* and test.*"]
    + [f"columns {','.join(names[0] for names in columns)}" for columns in COLUMNS.values()]
)


def names_of(kind: str, there: Sequence[str]) -> list[str] | None:
    """Return a file's columns of a kind, in the kind's order; None if one is missing."""
    names: list[str] = []
    for usual in COLUMNS[kind]:
        known = [name for name in usual if name in there and name not in names]
        if not known:
            return None
        names.append(known[0])
    return names


def kind_of_columns(path: Path, there: Sequence[str]) -> str:
    """Return the kind of a file with these columns.

    Raises:
        CseError: they fit no kind, or several.
    """
    fits = {kind: names for kind in COLUMNS if (names := names_of(kind, there))}
    if not fits:
        raise CseError(f"{path}: the columns {listed(there)} are those of no task; give one of: {_LAYOUTS}")
    if len(fits) > 1:
        told = " and ".join(f"{kind} ({', '.join(names)})" for kind, names in fits.items())
        raise CseError(f"{path}: the columns fit {told}; rename or remove those that are not meant")
    (kind,) = fits
    labels = [name for name in COLUMNS[LABELLED][1] if name in there]
    if kind == LABELLED and len(labels) > 1:
        raise CseError(f"{path}: the columns {' and '.join(labels)} both fit; remove or rename one")
    return kind


def is_beir(folder: Path) -> bool:
    """Return whether a folder is in BEIR's layout.

    Raises:
        CseError: it holds only a part of it.
    """
    absent = [name for name in _BEIR if not (folder / name).exists()]
    if absent and len(absent) < len(_BEIR):
        there = next(name for name in _BEIR if name not in absent)
        raise CseError(f"{folder}: has {there} but no {absent[0]}; a retrieval task needs {', '.join(_BEIR)}")
    return not absent


def splits_of(folder: Path) -> dict[str, Path] | None:
    """Return the files ``train.*`` and ``test.*`` of labelled texts, or None if the folder has not both.

    Raises:
        CseError: several files of one split, or another table beside them.
    """
    tables = [folder / name for name in contents(folder) if (folder / name).suffix.lower() in TABLES]
    found: dict[str, Path] = {}
    if not {"train", "test"} <= {path.stem for path in tables}:
        return None
    for path in tables:
        if path.stem not in ("train", "test") or path.stem in found:
            raise CseError(f"{path}: beside train.* and test.* of labelled texts; move it elsewhere")
        found[path.stem] = path
    return found
