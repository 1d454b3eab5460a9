"""The documents of a corpus: rows of tables, lines of text and pages, from a file, a folder, a glob or a URL."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import PurePosixPath
from typing import Any, Literal, cast

from cse.data.checks import check_column, check_text, listed, no_rows, required_text, titled
from cse.data.documents import BODIES, FILES, TITLES
from cse.data.read import FORMATS, TABLES, TableFile, ending, file_lines, is_data_name, parquet_table, text_table
from cse.data.tasks.beir import CORPUS, IDS, QUERIES
from cse.errors import CseError, in_terms_of, nearest
from cse.runtime.tokens import is_blank
from cse.storage import Folder, filesystem, reading, shown

IdType = Literal["int64", "string"]
PAGES = {kind: read for kind, read in FILES.items() if kind not in FORMATS}  # a document each
OWN = ("id", "passage", "text", "document", "embedding", "_words", "_key")  # columns of the table
_TAKEN = (*OWN, "_distance", "_cosine", "_score", "_relevance_score", "_rowid")  # of what a search reads
_ENCODING = "give the encoding of the file (--encoding latin-1, cp1252, utf-16, ...) or save it as UTF-8"
_INT64 = 1 << 63


@dataclass(frozen=True)
class Columns:
    """Names of columns: text, id, what names each row's domain, title to put before the text, and those to keep.

    Text, id and title that are None are those of the usual names, if the table has them; an empty id or title is none.
    """

    text: str | None = None
    id: str | None = None
    domain: str | None = None
    title: str | None = None
    kept: tuple[str, ...] = ()
    encoding: str = "utf-8"

    @property
    def options(self) -> list[tuple[str, str]]:
        """Return the names that are set, each with its option, in the order in which values are read."""
        every = [(self.text, "--text-column"), (self.domain, "--domain-column"), (self.title, "--title-column")]
        every += [(self.id, "--id-column"), *((name, "--keep-column") for name in self.kept)]
        return [(name, option) for name, option in every if name]


@dataclass(frozen=True)
class Document:
    """A document: its text begins with its title; the sections of a page are parts of it, each under its heading."""

    id: int | str
    text: str
    sections: Sequence[str]
    domain: str | None
    kept: Sequence[Any]

    @cached_property
    def key(self) -> int:
        """Hash of all that its rows in a table are made of, as a signed number of 64 bits."""
        made_of = json.dumps([self.id, self.text, self.sections, self.domain, self.kept], ensure_ascii=False)
        return hashed(made_of)


def hashed(text: str) -> int:
    """Return 64 bits of a text's hash as a signed number."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


class Corpus:
    """Files of one format, in the order of their names.

    A folder includes its subfolders, but not names that start with a dot or an underscore, README files and other
    formats; in one of BEIR's layout, the documents alone are read.

    Args:
        out: the output folder, whose files are not part of the corpus.
        check_domain: raises ``CseError`` for the name of a domain that cannot be used.

    Attributes:
        kept: types of the kept columns' values, and ``id_type`` of the ids, once all documents were read.
    """

    def __init__(
        self, url: str, columns: Columns, out: Folder, check_domain: Callable[[str], object] | None = None
    ) -> None:
        self.url, self._check_domain, self._encoding = url, check_domain, columns.encoding
        self._fs, path = filesystem(url)
        with reading(url):
            self._root, paths = _find(self._fs, path, url)
            if type(out.fs) is type(self._fs):
                paths = [one for one in paths if not one.startswith(f"{out.path.rstrip('/')}/")]
            self._files, self.format = self._chosen(paths)
            self.columns = self._named(columns)
        self.kept: dict[str, str] = {}
        self.id_type: IdType = "string" if self.format == "pages" or self.columns.id else "int64"
        self._ids: str | None = None
        self._domains: set[str] = set()

    def __iter__(self) -> Iterator[Document]:
        """Yield the documents, also those that say nothing; a bad one is named by file and line."""
        number = 0
        for path in self._files:
            name = shown(self._fs, path)
            with reading(name):
                for found in self._page(path) if self.format == "pages" else self._rows(path, number):
                    yield found
                    number += 1
        if not number:
            raise no_rows(shown(self._fs, self._files[0]))

    def _chosen(self, paths: Sequence[str]) -> tuple[list[str], str]:
        beir = {PurePosixPath(one).name: one for one in paths if one.rpartition("/")[0] == self._root}
        if queries := beir.keys() & {QUERIES, f"{QUERIES}.gz"}:
            paths = [beir[name] for name in (CORPUS, f"{CORPUS}.gz") if name in beir and queries][:1] or paths
        kinds = {one: ending(one.partition("?")[0]) for one in paths}
        formats = {**FORMATS, **dict.fromkeys(PAGES, "pages")}
        chosen = {one: formats[kind] for one, kind in kinds.items() if kind in formats}
        if not chosen:
            found = f" (only {listed(sorted(PurePosixPath(one).name for one in paths))})" if paths else ""
            raise CseError(f"{self.url}: no {', '.join(formats)} file here{found}; name a corpus in one of these")
        there = sorted(set(chosen.values()))
        if len(there) > 1:
            raise CseError(
                f"{self.url}: files of several formats ({', '.join(there)}); select one with a glob such as *.jsonl"
            )
        return sorted(chosen), there[0]

    def _named(self, columns: Columns) -> Columns:
        """Return the columns with the names that the first file gives them."""
        path = self._files[0]
        if self.format in ("txt", "pages"):
            for name, option in columns.options:
                raise CseError(
                    f"{option} {name}: {shown(self._fs, path)} has no columns; use a {', '.join(TABLES)} file"
                )
            return Columns(encoding=columns.encoding)
        for name in columns.kept:
            if name in _TAKEN or columns.kept.count(name) > 1:
                raise CseError(f"--keep-column {name}: the index has its own column of that name; rename it")
        with self._table(path) as table:
            there = [] if table is None else table.columns
        text, key, title = (
            next((one for one in names if one in there), None) if given is None else given
            for given, names in ((columns.text, BODIES), (columns.id, IDS), (columns.title, TITLES))
        )
        title = None if title == text else title
        return Columns(text or BODIES[0], key or None, columns.domain, title or None, columns.kept, columns.encoding)

    @contextmanager
    def _table(self, path: str) -> Iterator[TableFile | None]:
        """Open the table that a file holds; None if it has no row."""
        name, kind = shown(self._fs, path), FORMATS[ending(path.partition("?")[0])]
        if kind == "parquet":
            with self._fs.open(path, "rb") as stream:
                yield parquet_table(stream, name)
        else:
            yield text_table(partial(self._lines, path), kind, name)

    def _lines(self, path: str) -> Iterator[str]:
        with self._fs.open(path, "rb") as stream:
            yield from file_lines(stream, shown(self._fs, path), self._encoding, _ENCODING)

    def _rows(self, path: str, first: int) -> Iterator[Document]:
        name, columns = shown(self._fs, path), self.columns
        if self.format == "txt":
            for number, line in enumerate(self._lines(path)):
                text = required_text(line, "text", f"{name}:{number + 1}")
                yield Document(first + number, text, (), None, ())
            return
        with self._table(path) as table:
            if table is None:
                return
            for column, option in columns.options:
                check_column(column, table.columns, name, option)
            for place, values in table.pick([column for column, _ in columns.options]):
                if values:
                    yield self._document(f"{name}:{place}", list(values), first)
                    first += 1

    def _document(self, where: str, values: list[Any], number: int) -> Document:
        columns = self.columns
        text = check_text(values.pop(0), where)
        domain = None if columns.domain is None else self._domain(values.pop(0), where)
        title = None if columns.title is None else check_text(values.pop(0), where)
        if text is None and title is None:
            text = required_text(text, str(columns.text), where)
        key: int | str = number
        if columns.id is not None:
            self._check_id(key := values.pop(0), where)
        for name, value in zip(columns.kept, values, strict=True):
            self._note(name, value, where)
        return Document(key, text or "" if title is None else titled(title, text or ""), (), domain, values)

    def _page(self, path: str) -> Iterator[Document]:
        name = shown(self._fs, path)
        lines = (check_text(line, f"{name}:{number}") or "" for number, line in enumerate(self._lines(path), 1))
        with in_terms_of(f"{name}: "):
            title, parts = PAGES[ending(path.partition("?")[0])]("\n".join(lines))
        sections = [" ".join([part.heading, *part.paragraphs]).strip() for part in parts]
        whole = titled(title, "\n\n".join(sections))
        yield Document(path.removeprefix(self._root).lstrip("/"), whole, sections, None, ())

    # ---- values ----------------------------------------------------------------------------------------------------

    def _domain(self, value: Any, where: str) -> str:
        name = required_text(value, str(self.columns.domain), where, blank=False)
        if name not in self._domains and self._check_domain is not None:
            with in_terms_of(f"{where}: "):
                self._check_domain(name)
            self._domains.add(name)
        return name

    def _check_id(self, value: Any, where: str) -> None:
        name = self.columns.id
        if isinstance(value, int) and not isinstance(value, bool) and -_INT64 <= value < _INT64:
            found = "int64"
        elif isinstance(value, str):
            check_text(value, where)
            found = "string"
        else:
            what = "null" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"
            raise CseError(f"{where}: id column {name!r} should hold whole numbers or text, found {what}")
        if self._ids not in (None, found):
            raise CseError(f"{where}: id column {name!r} held {self._ids} before, here {found}; give ids of one type")
        self._ids = found
        self.id_type = cast(IdType, found)

    def _note(self, name: str, value: Any, where: str) -> None:
        """Note the type of a kept column's value; whole numbers fit among others."""
        found, known = _kind(value, name, where), self.kept.get(name)
        if found is None or known in (None, found):
            found = found or known
        elif {known, found} == {"int64", "double"}:
            found = "double"
        else:
            raise CseError(f"{where}: column {name!r} (--keep-column) held {known} before, here {found}; give one type")
        if found is not None:
            self.kept[name] = found


def says_something(document: Document) -> bool:
    """Return whether a document's text says anything."""
    return not is_blank(document.text)


def _kind(value: Any, name: str, where: str) -> str | None:
    """Return the type in which a kept value is stored; None for a missing one."""
    if isinstance(value, str):
        check_text(value, where)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or -_INT64 <= value < _INT64:
        for kind, stored in ((bool, "bool"), (int, "int64"), (float, "double"), (str, "string"), (type(None), None)):
            if isinstance(value, kind):
                return stored
    raise CseError(
        f"{where}: column {name!r} (--keep-column) should hold text, numbers, true or false, found {str(value)[:40]!r}"
    )


def _find(fs: Any, path: str, corpus: str) -> tuple[str, list[str]]:
    """Return the folder to which names are relative, and the paths of all files."""
    if fs.isfile(path):
        return path.rpartition("/")[0], [path]
    if fs.isdir(path):
        root = path.rstrip("/")
        return root, [one for one in fs.find(path) if _counts(one.removeprefix(root).strip("/"))]
    if any(character in path for character in "*?["):
        fixed = path[: min(path.find(character) for character in "*?[" if character in path)].rpartition("/")[0]
        matches = [one for one in fs.glob(path) if fs.isfile(one)]
        if not matches:
            raise CseError(f"{corpus}: no file matches")
        return fixed, matches
    raise CseError(f"{corpus}: no such file or folder{_near(fs, path)}")


def _counts(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return is_data_name(parts[-1]) and not any(part.startswith((".", "_")) for part in parts)


def _near(fs: Any, path: str) -> str:
    parent, _, name = path.rstrip("/").rpartition("/")
    try:
        beside: Iterable[str] = (one.rstrip("/").rpartition("/")[2] for one in fs.ls(parent, detail=False))
        return nearest(name, beside)
    except Exception:  # a hint is not worth an error
        return ""
