"""The plan: how a corpus is cut into pieces, each of which becomes one shard.

It depends on the files and the options alone, so any number of workers, killed at any time, make the same shards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from cse.errors import CseError
from cse.scale.corpus.columns import Columns, IdType, check_id, check_names, check_text
from cse.scale.corpus.delimited import RecordCheck
from cse.scale.corpus.lines import Cut, cut_lines, json_rows
from cse.scale.corpus.parquet import cut_rows
from cse.scale.corpus.sources import Corpus, Source
from cse.scale.corpus.storage import filesystem, reading

PLAN = "plan.json"
FORMAT = 1


@dataclass(frozen=True)
class Choices:
    """All options that change the bytes of a shard.

    Attributes:
        columns: names of the columns to read; txt has none.
        keep_text: whether shards hold the text too.
        shard_rows: most rows of a shard.
        batch_size: most rows of a forward pass.
        normalize: whether vectors have unit length.
        provider: ``cpu`` or ``cuda``.
    """

    columns: Columns
    keep_text: bool
    shard_rows: int
    batch_size: int
    normalize: bool
    provider: str


@dataclass(frozen=True)
class Piece:
    """What one shard is made of.

    Attributes:
        number: of the piece and its shard, from 0.
        file: index of the source.
        start: first byte; of parquet the first row in the file.
        end: the byte or row behind the last.
        rows: in it.
        line: number in the file of the first line, from 1; of parquet of the first row.
        first_row: number of its first row in the corpus, from 0.
    """

    number: int
    file: int
    start: int
    end: int
    rows: int
    line: int
    first_row: int

    @property
    def shard(self) -> str:
        """Return the name of the shard's file."""
        return f"part-{self.number:06d}.parquet"


@dataclass(frozen=True)
class Plan:
    """How a corpus is embedded.

    Attributes:
        facts: what the shards depend on; another run goes on from here only with the same facts.
        id_type: of the column ``id``.
        cuts: ``[file, start, end, rows, line]`` of each piece.
    """

    facts: dict[str, Any]
    id_type: IdType
    cuts: list[list[int]]

    @property
    def rows(self) -> int:
        """Return the rows of the corpus."""
        return sum(cut[3] for cut in self.cuts)

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces in the order of their rows."""
        first_row = 0
        for number, (file, start, end, rows, line) in enumerate(self.cuts):
            yield Piece(number, file, start, end, rows, line, first_row)
            first_row += rows

    def to_json(self) -> bytes:
        """Return the bytes of ``plan.json``."""
        tree = {"format": FORMAT, "facts": self.facts, "id_type": self.id_type, "pieces": self.cuts}
        return (json.dumps(tree, ensure_ascii=True) + "\n").encode()

    @classmethod
    def from_json(cls, content: bytes, shown: str) -> Plan:
        """Read ``plan.json``.

        Raises:
            CseError: a file that is no plan of this version.
        """
        try:
            tree = json.loads(content)
            if tree["format"] != FORMAT:
                raise CseError(f"{shown}: format {tree['format']!r}, this version reads {FORMAT}; start over (--again)")
            return cls(tree["facts"], tree["id_type"], tree["pieces"])
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, CseError):
                raise
            raise CseError(f"{shown}: not a plan of `cse embed`; name another folder") from None


def is_plan(content: bytes) -> bool:
    """Return whether bytes are a plan of this or another version."""
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(tree, dict) and {"format", "facts", "pieces"} <= tree.keys()


def plan_facts(corpus: Corpus, choices: Choices, bundle: dict[str, Any]) -> dict[str, Any]:
    """Return what the shards depend on: files with size and version, the model, the options."""
    options = asdict(choices)
    columns = options.pop("columns")
    return {
        "format": corpus.format,
        "files": [[file.name, file.size, file.version] for file in corpus.files],
        "model": bundle,
        **({} if corpus.format == "txt" else {"text_column": columns["text"], "id_column": columns["id"]}),
        **options,
    }


def make_plan(corpus: Corpus, choices: Choices, facts: dict[str, Any]) -> Plan:
    """Read through a corpus once and cut it into pieces; no piece reaches over two files.

    Raises:
        CseError: anything that is wrong with the corpus, with file and line; a corpus without a row.
    """
    ids = _IdTypes(choices.columns)
    cuts = []
    for index, file in enumerate(corpus.files):
        for cut in _cut(corpus, file, choices, ids):
            cuts.append([index, *cut])
    if not cuts:
        raise CseError(f"{corpus.files[0].shown}: no rows to embed; give one sentence a line")
    return Plan(facts, ids.known or "int64", cuts)


def difference(old: dict[str, Any], new: dict[str, Any]) -> str | None:
    """Say in a few words what is not as it was when a plan was made; None where nothing differs."""
    for key in [*new, *(key for key in old if key not in new)]:
        if old.get(key) == new.get(key):
            continue
        if key == "model":
            return "the model is another"
        if key != "files":
            return f"{key} was {old.get(key)!r}, now {new.get(key)!r}"
        before, now = ({file[0]: file[1:] for file in facts.get(key, [])} for facts in (old, new))
        for name in [*now, *before]:
            if before.get(name) != now.get(name):
                how = "is new" if name not in before else "is gone" if name not in now else "has changed"
                return f"{name} {how}"
        return "the files have another order"
    return None


class _IdTypes:
    """The type of the ids so far, over all files."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.known: IdType | None = None

    def accept(self, record: dict[str, Any], where: str) -> None:
        """Refuse a record without a usable text or id."""
        check_names(self.columns, list(record), where)
        check_text(record[self.columns.text], self.columns.text, where)
        if self.columns.id is not None:
            self.known = check_id(record[self.columns.id], self.known, self.columns.id, where)


def _cut(corpus: Corpus, file: Source, choices: Choices, ids: _IdTypes) -> Iterator[Cut]:
    fs, path = filesystem(file.url)
    with reading(file.shown), fs.open(path, "rb") as stream:
        if corpus.format == "parquet":
            found, cuts = cut_rows(stream, file.shown, choices.shard_rows, choices.columns)
            if ids.known not in (None, found):
                raise CseError(f"{file.shown}: id column holds {found}, in files before {ids.known}; give one type")
            ids.known = found
            yield from cuts
        elif corpus.format in ("csv", "tsv"):
            records = RecordCheck(choices.columns, f".{corpus.format}", file.shown, ids.accept)
            yield from cut_lines(stream, file.shown, choices.shard_rows, records)
            records.finish()
        else:
            check = json_rows(file.shown, ids.accept) if corpus.format == "jsonl" else None
            yield from cut_lines(stream, file.shown, choices.shard_rows, check)
