"""Read the texts, ids and domains of the pieces of a corpus."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, groupby, islice
from operator import attrgetter
from typing import Any

from cse.data.checks import is_blank
from cse.data.read import Format, decoded_lines, file_lines, reads_in_parts, without_end
from cse.errors import CseError
from cse.scale.corpus.columns import Columns, IdType, Row, RowCheck
from cse.scale.corpus.lines import ENCODING, read_header, text_rows
from cse.scale.corpus.parquet import parquet_rows
from cse.scale.corpus.plan import Piece
from cse.scale.corpus.sources import CorpusFile
from cse.storage import filesystem, reading


@dataclass(frozen=True)
class PieceRows:
    """Texts and ids (n) of a piece, in the order of the file, the names of the domains (n; 0 without a column), and the
    values of the kept columns (n each); rows that say nothing are left out, these are their ids.
    """

    texts: list[str]
    ids: list[Any]
    domains: list[str]
    kept: list[list[Any]]
    left_out: list[Any]


def read_pieces(
    pieces: Iterable[Piece], sources: Sequence[CorpusFile], kind: Format, columns: Columns, id_type: IdType
) -> Iterator[tuple[Piece, PieceRows]]:
    """Yield each piece with its rows, read when it is asked for; each row group of a parquet file is read once.

    Args:
        pieces: in row order; some may be missing.
    """
    check = RowCheck(columns, None if columns.id is None else id_type)
    for index, group in groupby(pieces, key=attrgetter("file")):
        source, wanted = sources[index], list(group)
        with reading(source.shown):
            if kind == "parquet" or not _in_parts(source, columns):
                whole = (
                    _parquet(wanted, source, columns) if kind == "parquet" else _lines(wanted, source, kind, columns)
                )
                rows = check.checked(whole, source.shown)
                for piece in wanted:
                    yield piece, _rows(piece, source, columns, islice(rows, piece.rows))
                continue
            for piece in wanted:
                rows = check.checked(_text(piece, source, kind, columns), source.shown)
                yield piece, _rows(piece, source, columns, rows)


def _rows(piece: Piece, source: CorpusFile, columns: Columns, rows: Iterable[Row]) -> PieceRows:
    found = PieceRows([], [], [], [[] for _ in columns.kept], [])
    for text, ids, domains, values in rows:
        found.texts.append(text)
        found.ids.extend(ids)
        found.domains.extend(domains)
        for column, value in zip(found.kept, values, strict=True):
            column.append(value)
    if len(found.texts) != piece.rows:
        raise CseError(
            f"{source.shown}:{piece.line}: {len(found.texts)} rows here, but {piece.rows} when the plan was made; "
            "the file has changed: start over (--again)"
        )
    if not found.ids:
        found.ids.extend(range(piece.first_row, piece.first_row + piece.rows))
    says = [not is_blank(text) for text in found.texts]
    if all(says):
        return found
    texts, ids, domains, *kept = (
        list(compress(column, says)) for column in (found.texts, found.ids, found.domains, *found.kept)
    )
    return PieceRows(texts, ids, domains, kept, [id_ for id_, said in zip(found.ids, says, strict=True) if not said])


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
    return text_rows(lines, kind, columns, source.shown, piece.line, header, whole=False)


def _in_parts(source: CorpusFile, columns: Columns) -> bool:
    fs, path = filesystem(source.url)
    with fs.open(path, "rb") as file:
        return reads_in_parts(file, source.shown, columns.encoding)


def _lines(pieces: Sequence[Piece], source: CorpusFile, kind: Format, columns: Columns) -> Iterator[tuple[int, Any]]:
    fs, path = filesystem(source.url)
    with fs.open(path, "rb") as file:
        lines = file_lines(file, source.shown, columns.encoding, ENCODING)
        rows, place = text_rows(lines, kind, columns, source.shown), 0
        for piece in pieces:
            yield from islice(rows, piece.start - place, piece.end - place)
            place = piece.end


def _parquet(pieces: Sequence[Piece], source: CorpusFile, columns: Columns) -> Iterator[tuple[int, Any]]:
    fs, path = filesystem(source.url)
    with fs.open(path, "rb") as file:
        yield from parquet_rows(file, source.shown, [(piece.start, piece.end) for piece in pieces], columns)
