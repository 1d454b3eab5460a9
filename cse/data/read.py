r"""Read files of rows: find them, decode them, and stream their records with line numbers.

* txt: a sentence on each line. A line ends only at ``\n``, ``\r\n`` or ``\r``.
* csv: a header, fields separated by commas, or by what separates the header's names (semicolons, tabs, bars) or
  Excel's line ``sep=;`` names; ``"`` around fields that hold separators, quotes (doubled) or line breaks.
* tsv: a header, fields separated by tabs; quotes are ordinary text.
* jsonl: one JSON object per line, or one array of objects, which are counted. The columns are the keys of the first
  thousand; ``data.text`` is the key ``text`` of the object ``data``.
* parquet: columns of the file; row numbers serve as line numbers.

Text may be gzipped. A byte order mark is not part of the first line, and one of UTF-16 says so.

Python's ``csv`` and ``json`` split the lines of text, because no larger reader tells rows from mistakes: `DuckDB`,
`pyarrow` and `datasets` read 25 of 30 rows where two stray quotes stand and take ``sep=;`` for the header, DuckDB reads
a file whose second row has a field too many as a table without rows, and each takes 0.2 to 4 seconds to start.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Literal, cast

from cse.data.checks import listed, no_rows
from cse.errors import CseError, nearest

Format = Literal["txt", "csv", "tsv", "jsonl", "parquet"]
FORMATS: dict[str, Format] = {
    ".txt": "txt",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
TABLES = sorted(ending for ending, kind in FORMATS.items() if kind != "txt")
BLANK: tuple[Any, ...] = ()
Numbered = tuple[int, Any]

_PACKED = ".gz"
_LONGEST = 1 << 24  # characters of a line or field: an open quote, or a line without end, must not fill the memory
_LONGEST_ARRAY = 1 << 28
_EXPANDED, _RATIO = 1 << 28, 200  # text that a file may hold in any case, or for each of its bytes
_SURE = 4  # lines that are rows by chance, in a file whose texts have line breaks, are fewer
_BATCH_ROWS = 8192
_SEEN = 1000  # objects that tell the columns
_EQUAL = 16  # bytes of a row; a column of fewer repeats its texts
_SAVE = "save the file as UTF-8"
_SET = "set data.encoding to the encoding of the file (latin-1, cp1252, utf-16, ...) or save it as UTF-8"
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_SEPARATOR_LINE = re.compile('"?sep=(.)"?', re.IGNORECASE)
_QUOTED = re.compile('"[^"]*"')


# ---- files ---------------------------------------------------------------------------------------------------------


def plain(path: str | PurePath) -> PurePath:
    """Return the name of what a gzipped file holds, or of the file."""
    path = PurePath(path)
    return path.with_suffix("") if path.suffix.lower() == _PACKED else path


def as_stored(path: Path) -> Path:
    """Return a file, or the gzipped one that stands in its place."""
    return next((one for one in (path, path.with_name(f"{path.name}{_PACKED}")) if one.is_file()), path)


def ending(path: str | PurePath) -> str:
    """Return the ending, such as ``.csv``, of a file or of what it holds if it is gzipped."""
    found = plain(path).suffix.lower()
    return PurePath(path).suffix.lower() if found == ".parquet" or not found else found


def data_files(folder: Path) -> list[Path]:
    """Return the data files directly in a folder, sorted by name."""
    return [path for path in (folder / name for name in contents(folder)) if ending(path) in FORMATS and path.is_file()]


def contents(folder: Path) -> list[str]:
    """Return the sorted names in a folder that pass ``is_data_name``."""
    return sorted(path.name for path in folder.iterdir() if is_data_name(path.name))


def is_data_name(name: str) -> bool:
    """Return whether a file of this name may hold data; README files and dot files never do."""
    return not name.startswith(".") and PurePath(name).stem.lower() != "readme"


def check_exists(path: Path, setting: str) -> None:
    """Raise ``CseError`` if ``path`` does not exist; the message gives the nearest name or the broken link."""
    if path.exists():
        return
    if path.is_symlink():
        raise CseError(f"{path}: a link to {path.readlink()}, which does not exist; fix it (or change {setting})")
    beside = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    match = nearest(path.name, beside)
    raise CseError(f"{path}: no such file or folder{match or '; put data there'} (or change {setting})")


def find_data_file(path: Path, setting: str = "data.train_path") -> Path:
    """Return ``path``, or the only data file in it if it is a folder."""
    check_exists(path, setting)
    if path.is_dir():
        found = data_files(path)
        if len(found) == 1:
            return found[0]
        if found:
            raise CseError(f"{path}: several data files ({listed(f.name for f in found)}); name one in {setting}")
        others = contents(path)
        there = f" (only {listed(others)})" if others else ""
        raise CseError(f"{path}: no {', '.join(FORMATS)} file in this folder{there}; put one there or set {setting}")
    if ending(path) not in FORMATS:
        raise CseError(f"{path}: cannot read {ending(path) or 'suffixless'} files; use one of {', '.join(FORMATS)}")
    return path


# ---- lines ---------------------------------------------------------------------------------------------------------


def text_lines(path: Path, encoding: str | None = None) -> Iterator[str]:
    """Yield the lines of a text file without their line ends; the first has number 1."""
    with path.open("rb") as file:
        yield from file_lines(file, str(path), encoding or "utf-8", _SAVE if encoding is None else _SET)


def file_lines(file: BinaryIO, shown: str, encoding: str = "utf-8", advice: str = _SAVE) -> Iterator[str]:
    """Yield the lines of an open file, positioned at its start, without line ends and byte order mark.

    Args:
        shown: its name; one that ends in ``.gz`` is unpacked.
        advice: remedy for a byte that does not decode.
    """
    packed, most = shown.lower().endswith(_PACKED), 0
    if packed:
        most = max(_EXPANDED, _RATIO * file.seek(0, io.SEEK_END))
        file.seek(0)
    try:
        stream = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else file
        head = _head(stream)
        longest = _LONGEST_ARRAY if head.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"[" else _LONGEST
        text = io.TextIOWrapper(stream, _codec(head, encoding), errors="surrogateescape", newline="")
        for number, line in enumerate(iter(partial(text.readline, longest + 1), ""), start=1):
            if len(line) > longest and not line.endswith(("\n", "\r")):
                raise CseError(f"{shown}:{number}: a line of over {longest:,} characters; break it into several")
            if packed and stream.tell() > most:
                raise CseError(f"{shown}: holds over {most:,} bytes, {_RATIO} for each of its own; unpack it")
            if not line.isascii() and (found := _ESCAPED_BYTE.search(line)):
                byte = ord(found.group()) - 0xDC00
                raise CseError(f"{shown}:{number}: byte 0x{byte:02x} is not {encoding}; {advice}")
            yield line.rstrip("\r\n")
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise CseError(f"{shown}: not gzip, or cut off; pack it again") from None
    except UnicodeError:
        raise CseError(f"{shown}: not {encoding}; {advice}") from None


def _head(file: BinaryIO) -> bytes:
    if hasattr(file, "peek"):
        return bytes(file.peek(64)[:64])
    place, head = file.tell(), file.read(64)
    file.seek(place)
    return head


def _codec(head: bytes, encoding: str) -> str:
    """Return the codec of a file that begins with these bytes; raise ``UnicodeError`` if they are not UTF-8 as said."""
    name = codecs.lookup(encoding).name
    if name != "utf-8":
        return name
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and not head.startswith(codecs.BOM_UTF32_LE):
        return "utf-16"
    if 3 * head.count(0) > len(head) or head.startswith(codecs.BOM_UTF32_LE):
        raise UnicodeError("UTF-16 without its mark, or UTF-32")
    return "utf-8-sig"


# ---- tables --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableFile:
    """An open table; its rows can be read again.

    Attributes:
        columns: names of all columns; ``data.text`` is the text of the objects ``data``.
        rows: given column names, yields ``(line, values)`` per row, with ``BLANK`` for a blank line.
    """

    shown: str
    columns: list[str]
    rows: Callable[[Sequence[str]], Iterator[Numbered]]

    def pick(self, names: Sequence[str]) -> Iterator[Numbered]:
        """Return the rows with the values of the named columns."""
        for name in names:
            if (count := self.columns.count(name)) > 1:
                raise CseError(f"{self.shown}: {count} columns {name!r}; give each its own name")
        return self.rows(names)


def open_table(path: Path, encoding: str | None = None) -> TableFile:
    """Open a table; its suffix determines the format. A txt file is one as Excel saves it, a tsv."""
    kind = FORMATS.get(ending(path))
    if kind is None:
        known = ", ".join(TABLES)
        raise CseError(f"{path}: cannot read columns from a {ending(path) or 'suffixless'} file; use one of {known}")
    if kind == "parquet":
        return parquet_table(path, str(path))
    table = text_table(lambda: text_lines(path, encoding), kind, str(path))
    if table is None or not table.columns:
        raise no_rows(str(path))
    return table


def text_table(read: Callable[[], Iterator[str]], kind: Format, shown: str) -> TableFile | None:
    """Read a csv, tsv or jsonl table lazily; None if a csv or tsv table has no row.

    ``read`` yields the lines without their line ends; it is called again for each reading of the rows.
    """
    if kind == "jsonl":  # the first object may lack what others have
        known = islice(json_records(read(), shown), _SEEN)
        columns = list(dict.fromkeys(key for _, record in known if record is not BLANK for key, _ in _leaves(record)))

        def objects(names: Sequence[str]) -> Iterator[Numbered]:
            for number, record in json_records(read(), shown):
                yield number, BLANK if record is BLANK else _picked(record, names)

        return TableFile(shown, columns, objects)
    separator, first = _separator_of(read()) if kind == "csv" else ("\t", 1)

    def records() -> Iterator[Numbered]:
        return delimited_records(islice(read(), first - 1, None), kind, shown, first, separator=separator)

    head = next((record for _, record in records() if record is not BLANK), None)
    if head is None:
        return None
    columns = [name.strip() for name in head]

    def rows(names: Sequence[str]) -> Iterator[Numbered]:
        places, begun = [columns.index(name) for name in names], False
        for number, record in records():
            if record is BLANK:
                yield number, BLANK
            elif not begun:
                begun = True
            elif len(record) != len(columns):
                advice = "remove tabs and line breaks from the sentences"
                if kind == "csv":
                    advice = f"put quotes around fields that hold {_SEPARATORS.get(separator, repr(separator))}"
                raise CseError(f"{shown}:{number}: {len(record)} fields, but the header has {len(columns)}; {advice}")
            else:
                yield number, [record[place] for place in places]

    return TableFile(shown, columns, rows)


def _separator_of(lines: Iterator[str]) -> tuple[str, int]:
    """Return what separates the fields of a csv file and the number of its first line.

    It is what Excel's line ``sep=`` names, which is skipped; else the candidate that stands most often outside quotes
    in the first line that is not blank; else the comma.
    """
    number, line = next(((number, line) for number, line in enumerate(lines, start=1) if line.strip()), (0, ""))
    if named := _SEPARATOR_LINE.fullmatch(line):
        return named[1], number + 1
    return max(_SEPARATORS, key="".join(line.split('"')[::2]).count), 1


def delimited_records(
    lines: Iterable[str], kind: Format, shown: str, first: int = 1, *, separator: str = ","
) -> Iterator[Numbered]:
    """Yield each csv or tsv record with the number of its first line.

    A csv record between two stray quotes is refused: one of many lines that are rows, or of fewer in a file whose texts
    have no other line breaks.
    """
    if kind != "csv":
        for number, line in enumerate(lines, start=first):
            yield number, line.split("\t") if line.strip() else BLANK
        return
    csv.field_size_limit(_LONGEST)
    held: list[str] = []  # the lines of the record
    stray: tuple[int, int] | None = None  # first line and lines of a record that may be several
    broken = False  # whether texts have line breaks

    def taken() -> Iterator[str]:
        for line in lines:
            held.append(line)
            yield f"{line}\n"

    reader = csv.reader(taken(), strict=True, delimiter=separator)
    while True:
        number = first + reader.line_num
        held.clear()
        try:
            record = next(reader)
        except StopIteration:
            if stray and not broken:
                raise _stray(shown, *stray) from None
            return
        except csv.Error as error:
            raise CseError(
                f"{shown}:{number}: broken csv record ({error}); close every quoted field, double the quotes inside"
            ) from None
        if len(held) > 1:
            found = _are_rows(held, separator, len(record))
            if found and len(held) >= _SURE:
                raise _stray(shown, number, len(held))
            stray, broken = stray or ((number, len(held)) if found else None), broken or not found
        blank = not record or (len(record) == 1 and not record[0].strip())
        yield number, BLANK if blank else record


def _stray(shown: str, number: int, lines: int) -> CseError:
    return CseError(
        f"{shown}:{number}: a quote opens here and closes in line {number + lines - 1}, and each line between is a "
        'whole row; double stray quotes (""), or write texts with line breaks as jsonl'
    )


def _are_rows(lines: Sequence[str], separator: str, fields: int) -> bool:
    """Return whether each line of a record is a row, too: as many fields, none blank or behind a blank as in a text."""
    rows = [_QUOTED.sub("x", line).replace('"', "").split(separator) for line in lines if line.strip()]
    filled = all(map(str.strip, (*rows[0], *rows[-1])))
    return fields > 1 and filled and all(len(row) == fields and row == list(map(str.lstrip, row)) for row in rows)


def json_records(lines: Iterable[str], shown: str, first: int = 1) -> Iterator[Numbered]:
    """Yield the object on each line with its line number, or each object of an array with its number."""
    numbered, seen = enumerate(lines, start=first), False
    for number, line in numbered:
        if not line.strip():
            yield number, BLANK
            continue
        seen, begun = True, seen
        if not begun and line.lstrip().startswith("["):
            yield from _array_records(chain([line], (line for _, line in numbered)), shown)
            return
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            expected = "expected one object per line, or an array of objects"
            raise CseError(f"{shown}:{number}: not valid JSON ({error}); {expected}") from None
        yield number, _object(record, shown, number)


def _array_records(lines: Iterable[str], shown: str) -> Iterator[Numbered]:
    held, size = [], 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size > _LONGEST_ARRAY:
            raise CseError(f"{shown}: an array of over {_LONGEST_ARRAY:,} characters; write one object per line")
    try:
        records = json.loads("\n".join(held))
    except (ValueError, RecursionError) as error:
        raise CseError(f"{shown}: not valid JSON ({error}); expected an array of objects") from None
    for number, record in enumerate(records, start=1):
        yield number, _object(record, shown, number)


def _object(record: Any, shown: str, number: int) -> dict[str, Any]:
    if not isinstance(record, dict):
        found = type(record).__name__
        raise CseError(f"{shown}:{number}: expected a JSON object with named columns, found {found}")
    return record


def _picked(record: dict[str, Any], names: Sequence[str]) -> list[Any]:
    found = record if all(map(record.__contains__, names)) else dict(_leaves(record))
    return [found.get(name) for name in names]


def _leaves(record: dict[str, Any], above: str = "", depth: int = 3) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of an object; those of an object in it as ``data.text``."""
    for key, value in record.items():
        if isinstance(value, dict) and value and depth:
            yield from _leaves(value, f"{above}{key}.", depth - 1)
        else:
            yield above + key, value


# ---- parquet -------------------------------------------------------------------------------------------------------


def parquet_table(file: Path | BinaryIO, shown: str) -> TableFile:
    """Open a parquet file; its rows are numbered from 1.

    Columns of few bytes a row repeat their texts, and are read as dictionaries.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        facts = pq.ParquetFile(file).metadata
        groups = [facts.row_group(number) for number in range(facts.num_row_groups)]
        chunks = [(group.num_rows, group.column(place)) for group in groups for place in range(group.num_columns)]
        texts = [(rows, chunk) for rows, chunk in chunks if chunk.physical_type == "BYTE_ARRAY"]
        equal = {chunk.path_in_schema for rows, chunk in texts if chunk.total_uncompressed_size < _EQUAL * rows}
        opened = pq.ParquetFile(file, metadata=facts, read_dictionary=sorted(equal))
    except pa.ArrowInvalid:
        raise CseError(f"{shown}: not a parquet file, or cut off; write it again") from None
    size = sum(group.total_byte_size for group in groups)

    def rows(names: Sequence[str]) -> Iterator[Numbered]:
        held, first = 0, 1
        try:
            # one thread: one that still holds the file when the process exits would abort it
            for batch in opened.iter_batches(_BATCH_ROWS, columns=list(names), use_threads=False):
                table = _flat(pa.Table.from_batches([batch]))
                sizes, values = zip(*(_unpacked(table[name].combine_chunks()) for name in names), strict=True)
                held += sum(sizes)
                if held > max(_EXPANDED, _RATIO * size):
                    told = f"{size:,} bytes hold over {_EXPANDED:,} of equal texts"
                    raise CseError(f"{shown}:{first}: {told}; keep each of them once")
                yield from enumerate(zip(*values, strict=True), start=first)
                first += len(batch)
        except (pa.ArrowInvalid, OSError) as error:
            raise CseError(f"{shown}:{first}: cannot be read ({str(error).splitlines()[0]})") from None

    return TableFile(shown, _flat(opened.schema_arrow.empty_table()).column_names, rows)


def _flat(table: Any) -> Any:
    """Return a table with the fields of its structs as columns, such as ``data.text``."""
    from pyarrow import types

    while any(types.is_struct(column.type) for column in table.schema):
        table = table.flatten()
    return table


def _unpacked(column: Any) -> tuple[int, list[Any]]:
    """Return the bytes that a column stands for and its values; a text that repeats is one object."""
    from pyarrow import types

    if not types.is_dictionary(column.type):
        return column.nbytes, column.to_pylist()
    texts, places = column.dictionary.to_pylist(), column.indices.to_pylist()
    sizes = [len(str(text)) for text in texts]
    values = [None if place is None else texts[place] for place in places]
    return sum(sizes[place] for place in places if place is not None), values
