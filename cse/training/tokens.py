"""Training rows as token ids: tokenised once, stored flat, and shared by processes that train on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from filelock import FileLock
from tokenizers import Tokenizer
from tqdm.auto import tqdm

from cse.choices import LABELS
from cse.data.store import texts_in
from cse.outputs import publish_file
from cse.runtime.tokens import Tokenizers, Tokens, tokenize
from cse.training.batches import RowOrder

_CHUNK = 10_000

# column that each copy of a row reads; a sentence is its own positive and differs by dropout alone
COLUMN_OF_COPY = {"sentences": (0, 0), "pairs": (0, 1), "triplets": (0, 1, 2), "labelled": (0, 1)}


@dataclass(frozen=True)
class TokenTable:
    """Every training row, tokenised; a column per view (the same twice if a sentence is its own positive).

    Attributes:
        labels: index into ``LABELS`` for each row of labelled data, or the number of the label that a row's texts
            have, int64 ``(rows,)``; None if the loss needs neither.
    """

    columns: tuple[Tokens, ...]
    pad_id: int
    labels: np.ndarray | None = None
    keys: np.ndarray | None = None
    weight: float = 1.0

    def __len__(self) -> int:
        return len(self.columns[0].starts) - 1

    @property
    def rows(self) -> RowOrder:
        return RowOrder(len(self), self.keys, self.weight)


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
) -> TokenTable:
    """Tokenise all columns of the training rows once, by one tokenizer or one per view (two templates)."""

    def column(number: int, which: int, change: Callable[[str, int], str] | None) -> Tokens:
        name, own, parts = rows.column_names[number], Tokenizers(tokenizers[which]), []
        for start in tqdm(range(0, len(rows), _CHUNK), desc=f"tokenise {name}", disable=None, leave=False):
            texts: list[str] = rows[name].slice(start, _CHUNK).to_pylist()
            if change is not None:
                texts = [change(text, row) for row, text in enumerate(texts, start=start)]
            if before:
                texts = [before[number] + text for text in texts]
            parts.append(tokenize(texts, [max_length] * len(texts), own))
        ids = np.concatenate([np.empty(0, np.int32), *(part.ids for part in parts)])
        starts = np.concatenate([[0], *(part.lengths for part in parts)]).cumsum()
        return Tokens(ids, starts, sum(part.truncated for part in parts))

    wanted = [
        (number, min(copy, len(tokenizers) - 1), second_text if copy == 1 else None)
        for copy, number in enumerate(COLUMN_OF_COPY[view][:views])
    ]
    made = {one: column(*one) for one in dict.fromkeys(wanted)}
    labels = None
    if view == "labelled":
        labels = np.array([LABELS.index(label) for label in texts_in(rows, "label")], np.int64)
    return TokenTable(tuple(made[one] for one in wanted), pad_id, labels)


def shared_table(path: Path, make: Callable[[], TokenTable]) -> TokenTable:
    """Return a table of arrays that are mapped from a file, which the first process writes while others wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if not path.is_file():
            made = make()
            # a column that two views read is written once
            parts = {
                id(each): [torch.from_numpy(each.ids), torch.from_numpy(each.starts), each.truncated]
                for each in made.columns
            }
            rest = {"labels": made.labels, "keys": made.keys}
            more = {name: torch.from_numpy(array) for name, array in rest.items() if array is not None}
            with publish_file(path) as draft, draft.open("wb") as stream:
                torch.save((made.pad_id, [parts[id(each)] for each in made.columns], more), stream)
    pad_id, columns, more = torch.load(path, mmap=True, weights_only=True)
    found = tuple(Tokens(ids.numpy(), starts.numpy(), truncated) for ids, starts, truncated in columns)
    return TokenTable(found, pad_id, **{name: values.numpy() for name, values in more.items()})
