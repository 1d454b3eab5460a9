"""Read one piece of a corpus: its texts and ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cse.errors import CseError
from cse.scale.corpus.columns import Columns, IdType, check_id, check_names, check_text
from cse.scale.corpus.delimited import read_records
from cse.scale.corpus.lines import decoded, json_object, split_lines
from cse.scale.corpus.parquet import read_slice
from cse.scale.corpus.plan import Piece
from cse.scale.corpus.sources import Format, Source
from cse.scale.corpus.storage import filesystem, reading


@dataclass(frozen=True)
class Rows:
    """Texts and ids (n) of a piece, in the order of the file."""

    texts: list[str]
    ids: list[Any]


def read_piece(piece: Piece, source: Source, kind: Format, columns: Columns, id_type: IdType) -> Rows:
    """Read the rows of a piece.

    Raises:
        CseError: a row without a usable text or id, with file and line; a file that changed after the plan was made.
        OSError: a local file that cannot be read.
    """
    with reading(source.shown):
        if kind == "parquet":
            found = _parquet(piece, source, columns, id_type)
        elif kind in ("csv", "tsv"):
            found = _delimited(piece, source, f".{kind}", columns)
        else:
            found = _text(piece, source, columns if kind == "jsonl" else None, id_type)
    if len(found.texts) != piece.rows:
        raise CseError(
            f"{source.shown}:{piece.line}: {len(found.texts)} rows here, {piece.rows} when the plan was made; the file "
            "changed meanwhile: start over (--again)"
        )
    if not found.ids:
        return Rows(found.texts, list(range(piece.first_row, piece.first_row + piece.rows)))
    return found


def _lines(piece: Piece, source: Source) -> list[str]:
    fs, path = filesystem(source.url)
    content = fs.cat_file(path, start=piece.start, end=piece.end)
    if len(content) > piece.end - piece.start:
        raise CseError(f"{source.shown}: the server sends whole files only; copy it here first")
    return split_lines(decoded(content, source.shown, piece.line))


def _delimited(piece: Piece, source: Source, ending: str, columns: Columns) -> Rows:
    fs, path = filesystem(source.url)
    found = Rows([], [])
    with fs.open(path, "rb") as file:
        for text, *ids in read_records(_lines(piece, source), piece.line, columns, ending, source.shown, file):
            found.texts.append(text)
            found.ids.extend(ids)
    return found


def _text(piece: Piece, source: Source, columns: Columns | None, id_type: IdType) -> Rows:
    lines = _lines(piece, source)
    if columns is None:
        return Rows(lines, [])
    found = Rows([], [])
    for number, line in enumerate(lines, start=piece.line):
        if not line.strip():
            continue
        where = f"{source.shown}:{number}"
        record = json_object(line, where)
        check_names(columns, list(record), where)
        found.texts.append(check_text(record[columns.text], columns.text, where))
        if columns.id is not None:
            check_id(record[columns.id], id_type, columns.id, where)
            found.ids.append(record[columns.id])
    return found


def _parquet(piece: Piece, source: Source, columns: Columns, id_type: IdType) -> Rows:
    fs, path = filesystem(source.url)
    found = Rows([], [])
    with fs.open(path, "rb") as file:
        for texts, *ids in read_slice(file, source.shown, piece.start, piece.end, columns):
            for text in texts:
                found.texts.append(check_text(text, columns.text, f"{source.shown}:{piece.line + len(found.texts)}"))
            for value in ids[0] if ids else ():
                where = f"{source.shown}:{piece.line + len(found.ids)}"
                check_id(value, id_type, str(columns.id), where)
                found.ids.append(value)
    return found
