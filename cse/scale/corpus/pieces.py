"""Read the texts, ids and domains of one piece of a corpus."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from cse.data.tables import Format
from cse.data.text_files import decoded_lines, without_end
from cse.errors import CseError
from cse.scale.corpus.columns import Columns, IdType, RowCheck
from cse.scale.corpus.lines import read_header, text_rows
from cse.scale.corpus.parquet import parquet_rows
from cse.scale.corpus.plan import Piece
from cse.scale.corpus.sources import CorpusFile
from cse.scale.corpus.storage import filesystem, reading


@dataclass(frozen=True)
class Rows:
    """Texts and ids (n) of a piece, in the order of the file, and the names of the domains (n; 0 without a column)."""

    texts: list[str]
    ids: list[Any]
    domains: list[str]


def read_piece(piece: Piece, source: CorpusFile, kind: Format, columns: Columns, id_type: IdType) -> Rows:
    """Read the rows of a piece.

    Raises:
        CseError: a bad text, id or domain, with file and line; a file that changed after the plan was made.
        OSError: a local file that cannot be read.
    """
    found = Rows([], [], [])
    check = RowCheck(columns, None if columns.id is None else id_type)
    with reading(source.shown):
        rows = _parquet(piece, source, columns) if kind == "parquet" else _text(piece, source, kind, columns)
        for text, ids, domains in check.checked(rows, source.shown):
            found.texts.append(text)
            found.ids.extend(ids)
            found.domains.extend(domains)
    if len(found.texts) != piece.rows:
        raise CseError(
            f"{source.shown}:{piece.line}: {len(found.texts)} rows here, but {piece.rows} when the plan was made; "
            "the file has changed: start over (--again)"
        )
    if not found.ids:
        return replace(found, ids=list(range(piece.first_row, piece.first_row + piece.rows)))
    return found


def _text(piece: Piece, source: CorpusFile, kind: Format, columns: Columns) -> Iterator[tuple[int, Any]]:
    fs, path = filesystem(source.url)
    content = fs.cat_file(path, start=piece.start, end=piece.end)
    if len(content) > piece.end - piece.start:
        raise CseError(f"{source.shown}: the server sends whole files only; copy it here first")
    header = None
    if kind in ("csv", "tsv") and piece.line > 1:
        with fs.open(path, "rb") as file:
            header = read_header(file, kind, source.shown)
    lines = map(without_end, decoded_lines(io.BytesIO(content), source.shown, first=piece.line))
    return text_rows(lines, kind, columns, source.shown, piece.line, header)


def _parquet(piece: Piece, source: CorpusFile, columns: Columns) -> Iterator[tuple[int, Any]]:
    fs, path = filesystem(source.url)
    with fs.open(path, "rb") as file:
        yield from parquet_rows(file, source.shown, piece.start, piece.end, columns)
