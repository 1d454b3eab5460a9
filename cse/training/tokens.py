"""Training rows as token ids: tokenised once, stored flat, batched with little padding."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from filelock import FileLock
from tokenizers import Tokenizer
from tqdm.auto import tqdm

from cse.choices import LABELS
from cse.data.store import texts_in
from cse.files import write_array
from cse.outputs import Kind, publish_folder
from cse.training.batches import Rows

_CHUNK = 10_000
_TABLE = "table.json"

# column that each copy of a row reads; a sentence is its own positive and differs by dropout alone
COLUMN_OF_COPY = {"sentences": (0, 0), "pairs": (0, 1), "triplets": (0, 1, 2), "labelled": (0, 1)}


@dataclass(frozen=True)
class TokenColumn:
    """Token ids of one column: row ``i`` is ``ids[offsets[i]:offsets[i + 1]]``."""

    ids: np.ndarray  # int32 (tokens,)
    offsets: np.ndarray  # int64 (rows + 1,)

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of tokens of each of ``rows``, int64 ``(len(rows),)``."""
        return self.offsets[rows + 1] - self.offsets[rows]


@dataclass(frozen=True)
class TokenTable:
    """Every training row, tokenised.

    Attributes:
        columns: one per view (the same column twice if a sentence is its own positive).
        labels: index into ``LABELS`` for each row of labelled data, or the number of the label that a row's texts
            have, int64 ``(rows,)``; None if the loss needs neither.
    """

    columns: tuple[TokenColumn, ...]
    pad_id: int
    labels: np.ndarray | None = None
    keys: np.ndarray | None = None
    weight: float = 1.0

    def __len__(self) -> int:
        return len(self.columns[0].offsets) - 1

    @property
    def rows(self) -> Rows:
        """What the order of the rows follows from."""
        return Rows(len(self), self.keys, self.weight)


def tokenise(
    rows: pa.Table,
    view: str,
    tokenizers: Sequence[Tokenizer],
    *,
    max_length: int,
    pad_id: int,
    views: int | None = None,
    before: Sequence[str] = (),
    second_text: Callable[[str, int], str] | None = None,
    progress: bool = False,
) -> TokenTable:
    """Tokenise all columns of the training rows once.

    Args:
        tokenizers: fast tokenizers, one for all views or one per view (two templates); copied before use.
    """
    made: dict[tuple[int, int, bool], TokenColumn] = {}
    columns = []
    for number, index in enumerate(COLUMN_OF_COPY[view][:views]):
        which = min(number, len(tokenizers) - 1)
        change = second_text if number == 1 else None
        key = (index, which, change is not None)
        if key not in made:
            name = rows.column_names[index]
            task = before[index] if before else ""
            made[key] = _tokenise_column(rows, name, tokenizers[which], max_length, task, change, progress)
        columns.append(made[key])
    labels = None
    if view == "labelled":
        places = {label: number for number, label in enumerate(LABELS)}
        labels = np.fromiter((places[label] for label in texts_in(rows, "label")), dtype=np.int64, count=len(rows))
    return TokenTable(tuple(columns), pad_id, labels)


def _tokenise_column(
    rows: pa.Table,
    name: str,
    tokenizer: Tokenizer,
    max_length: int,
    task: str,
    change: Callable[[str, int], str] | None,
    progress: bool,
) -> TokenColumn:
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length)
    pieces, lengths = [np.empty(0, np.int32)], [np.empty(0, np.int64)]
    for start in tqdm(range(0, len(rows), _CHUNK), desc=f"tokenise {name}", disable=not progress, leave=False):
        texts: list[str] = rows[name].slice(start, _CHUNK).to_pylist()
        if change is not None:
            texts = [change(text, row) for row, text in enumerate(texts, start=start)]
        if task:
            texts = [task + text for text in texts]
        encodings = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]
        pieces.append(np.fromiter((i for ids in encodings for i in ids), dtype=np.int32))
        lengths.append(np.fromiter(map(len, encodings), dtype=np.int64, count=len(encodings)))
    return TokenColumn(np.concatenate(pieces), np.concatenate([[0], *lengths]).cumsum())


def shared_table(folder: Path, make: Callable[[], TokenTable]) -> TokenTable:
    """Return a table of memory-mapped arrays; processes that open the same folder share one copy.

    Args:
        folder: folder of the arrays; the first process writes them while the others wait.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if not (folder / _TABLE).is_file():
            with publish_folder(folder, Kind.TOKENS) as target:
                _write_table(make(), target)
    facts = json.loads((folder / _TABLE).read_text(encoding="utf-8"))

    def array(name: str) -> np.ndarray:
        return np.load(folder / f"{name}.npy", mmap_mode="r")

    columns = {number: TokenColumn(array(f"ids-{number}"), array(f"offsets-{number}")) for number in facts["columns"]}
    labels = np.array(array("labels")) if facts["labels"] else None
    keys = np.array(array("keys")) if facts.get("keys") else None
    return TokenTable(tuple(columns[number] for number in facts["columns"]), facts["pad_id"], labels, keys)


def _write_table(table: TokenTable, folder: Path) -> None:
    numbers: dict[int, int] = {}  # write a repeated column only once
    for column in table.columns:
        if id(column) not in numbers:
            number = numbers.setdefault(id(column), len(numbers))
            write_array(folder / f"ids-{number}.npy", column.ids)
            write_array(folder / f"offsets-{number}.npy", column.offsets)
    if table.labels is not None:
        write_array(folder / "labels.npy", table.labels)
    if table.keys is not None:
        write_array(folder / "keys.npy", table.keys)
    facts = {
        "columns": [numbers[id(column)] for column in table.columns],
        "pad_id": table.pad_id,
        "labels": table.labels is not None,
        "keys": table.keys is not None,
    }
    (folder / _TABLE).write_text(json.dumps(facts), encoding="utf-8")
