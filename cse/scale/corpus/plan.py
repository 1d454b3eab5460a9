"""The plan: how a corpus is split into pieces, each of which becomes one shard.

It depends only on the files and the options, so any number of workers, killed at any time, make the same shards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from cse.data.checks import no_rows
from cse.data.read import file_lines, reads_in_parts
from cse.errors import CseError
from cse.scale.corpus.columns import Columns, IdType, RowCheck
from cse.scale.corpus.lines import ENCODING, Span, split_rows, split_text, text_rows
from cse.scale.corpus.parquet import split_parquet
from cse.scale.corpus.sources import Corpus, CorpusFile
from cse.storage import filesystem, reading

PLAN = "plan.json"
FORMAT = 2


@dataclass(frozen=True)
class Choices:
    """The options that change the bytes of a shard."""

    columns: Columns
    keep_text: bool
    shard_rows: int
    batch_size: int | None
    normalize: bool
    provider: str
    role: str | None = None
    task_text: str = ""


@dataclass(frozen=True)
class Piece:
    """The rows of one shard.

    Attributes:
        number: number of the piece and its shard, from 0.
        start: first byte; for parquet, the first row in the file.
        end: one past the last byte or row.
        line: number of the first line in the file, from 1; for parquet, of the first row.
        first_row: number of the first row in the corpus, from 0.
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
        """Return the file name of the shard."""
        return f"part-{self.number:06d}.parquet"


@dataclass(frozen=True)
class CorpusPlan:
    """How a corpus is split into pieces.

    Attributes:
        facts: what the shards depend on; a run resumes only with the same facts.
        spans: ``[file, start, end, rows, line]`` of each piece.
    """

    facts: dict[str, Any]
    id_type: IdType
    spans: list[list[int]]
    kept: dict[str, str]

    @property
    def rows(self) -> int:
        """Return the number of rows in the corpus."""
        return sum(span[3] for span in self.spans)

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces in row order."""
        first_row = 0
        for number, (file, start, end, rows, line) in enumerate(self.spans):
            yield Piece(number, file, start, end, rows, line, first_row)
            first_row += rows

    def to_json(self) -> bytes:
        """Return the bytes of ``plan.json``."""
        tree = {"format": FORMAT, "facts": self.facts, "id_type": self.id_type, "kept": self.kept}
        tree["pieces"] = self.spans
        return (json.dumps(tree, ensure_ascii=True) + "\n").encode()

    @classmethod
    def from_json(cls, content: bytes, shown: str) -> CorpusPlan:
        """Read ``plan.json``."""
        try:
            tree = json.loads(content)
            if tree["format"] != FORMAT:
                raise CseError(f"{shown}: format {tree['format']!r}, this version reads {FORMAT}; start over (--again)")
            return cls(tree["facts"], tree["id_type"], tree["pieces"], tree["kept"])
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, CseError):
                raise
            raise CseError(f"{shown}: not a plan of `cse embed`; name another folder") from None


def is_plan(content: bytes) -> bool:
    """Return whether bytes are a plan, of any version."""
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(tree, dict) and {"format", "facts", "pieces"} <= tree.keys()


def plan_facts(corpus: Corpus, choices: Choices, model: dict[str, Any]) -> dict[str, Any]:
    """Return what the shards depend on: files with size and version, the model, the options."""
    options = asdict(choices)
    columns = options.pop("columns")
    if choices.role is None:  # as before there were roles
        del options["role"], options["task_text"]
    return {
        "format": corpus.format,
        "files": [[file.name, file.size, file.version] for file in corpus.files],
        "model": model,
        **({} if corpus.format == "txt" else {"text_column": columns["text"], "id_column": columns["id"]}),
        **{f"{name}_column": columns[name] for name in ("domain", "title") if columns[name] is not None},
        **({} if columns["encoding"] == "utf-8" else {"encoding": columns["encoding"]}),
        **({"kept_columns": list(columns["kept"])} if columns["kept"] else {}),
        **options,
    }


def make_plan(
    corpus: Corpus, choices: Choices, facts: dict[str, Any], check_domain: Callable[[str], object] | None = None
) -> CorpusPlan:
    """Read a corpus once and split it into pieces; no piece spans two files."""
    check = RowCheck(choices.columns, check_domain=check_domain)
    spans = [[index, *span] for index, file in enumerate(corpus.files) for span in _split(corpus, file, choices, check)]
    if not spans:
        raise no_rows(corpus.files[0].shown)
    kept = {name: check.kept.get(name, "string") for name in choices.columns.kept}
    return CorpusPlan(facts, check.id_type or "int64", spans, kept)


def difference(old: dict[str, Any], new: dict[str, Any]) -> str | None:
    """Return in a few words what changed since a plan was made; None if nothing did."""
    for key in [*new, *(key for key in old if key not in new)]:
        if old.get(key) == new.get(key):
            continue
        if key == "model":
            return f"the model is different{_changed_domain(old, new)}"
        if key != "files":
            return f"{key} was {old.get(key)!r}, now {new.get(key)!r}"
        before, now = ({file[0]: file[1:] for file in facts.get(key, [])} for facts in (old, new))
        return _changed(before, now) or "the files are in a different order"
    return None


def _changed_domain(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Return which domain changed, in brackets, if that is all that makes the models differ."""
    (before, was), (now, rest) = (_apart(facts.get("model")) for facts in (old, new))
    changed = _changed(before, now) if was == rest else None
    return "" if changed is None else f" (domain {changed})"


def _apart(model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the domains of a model, and what else is known of it."""
    known = dict(model) if isinstance(model, dict) else {}
    return known.pop("domains", {}), known


def _changed(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """Return the first name whose value changed, and how."""
    for name in [*now, *before]:
        if before.get(name) != now.get(name):
            how = "is new" if name not in before else "is gone" if name not in now else "has changed"
            return f"{name} {how}"
    return None


def _split(corpus: Corpus, file: CorpusFile, choices: Choices, check: RowCheck) -> Iterator[Span]:
    fs, path = filesystem(file.url)
    with reading(file.shown), fs.open(path, "rb") as stream:
        if corpus.format != "parquet":

            def rows(lines: Iterator[str]) -> Iterator[object]:
                return check.checked(text_rows(lines, corpus.format, choices.columns, file.shown), file.shown)

            encoding = choices.columns.encoding
            if reads_in_parts(stream, file.shown, encoding):
                yield from split_text(stream, file.shown, choices.shard_rows, rows)
            else:
                lines = file_lines(stream, file.shown, encoding, ENCODING)
                yield from split_rows(rows(lines), choices.shard_rows)
            return
        found, spans = split_parquet(stream, file.shown, choices.shard_rows, choices.columns, check)
        if check.id_type not in (None, found):
            raise CseError(f"{file.shown}: id column holds {found}, in files before {check.id_type}; give one type")
        check.id_type = found
        yield from spans
