"""Corrupted copies of rows for replaced-token detection (DiffCSE's code; methods of D2CSE).

Every random choice is a hash of (seed, epoch, view, index of the token in its column), so corrupting a batch during
training gives the same result as corrupting all rows beforehand.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from cse.errors import CseError
from cse.files import write_array
from cse.losses.masked_lm import Vocabulary, mask_tokens, uniform
from cse.losses.shared import Rows, Source
from cse.model.backbone import Backbone
from cse.model.mlm_head import Generator, UnigramGenerator, load_generator
from cse.model.passes import on_device, pinned
from cse.settings.objective import ReplacedTokensSettings
from cse.settings.train import TrainSettings
from cse.training import CORRUPTION_FILE
from cse.training.tokens import TokenColumn, TokenTable

_CHUNK = 256  # rows per generator pass when corrupting all rows beforehand
_DIGESTS = "rows.json"
_AGAIN = "run `cse corrupt` (or `dvc repro`) again"
_CHOOSE = 3  # stream of random numbers, after those of masking


def corrupt(
    ids_BL: np.ndarray,
    mask_BL: np.ndarray,
    index_BL: np.ndarray,
    view_B: np.ndarray,
    *,
    how: ReplacedTokensSettings,
    seed: int,
    vocabulary: Vocabulary,
    generator: Generator,
    epoch: int,
) -> torch.Tensor:
    """Replace tokens with a generator's proposals; keep the first token and padding.

    Args:
        index_BL: index of each token in its column's flat ids.

    Returns:
        Ids ``(B, L)``, int64, on the generator's device.
    """
    masked_BL, chosen_BL = mask_tokens(
        ids_BL, mask_BL, index_BL, view_B, vocabulary, share=how.mask_share, seed=seed, epoch=epoch
    )
    draw_BL = uniform(seed, epoch, view_B, index_BL, _CHOOSE)
    draws = how.choice == "sample" or not generator.reads_context
    proposed_BL = generator.propose(masked_BL, mask_BL, draw_BL if draws else None)
    everywhere = how.positions == "all" and generator.reads_context
    taken_BL = (mask_BL == 1) if everywhere else chosen_BL
    if how.protect_special:
        taken_BL = taken_BL & ~np.isin(ids_BL, vocabulary.special)
    taken_BL[:, 0] = False
    taken, kept = (pinned(array, proposed_BL.device) for array in (taken_BL, ids_BL))
    return torch.where(taken, proposed_BL, kept)


def on_the_fly(how: ReplacedTokensSettings, seed: int, vocabulary: Vocabulary, generator: Generator) -> Source:
    """Return a source that corrupts each slice during training."""

    def source(rows: Rows, device: torch.device, epoch: int) -> torch.Tensor:
        corrupted_BL = corrupt(
            rows.ids_BL,
            rows.mask_BL,
            rows.index_BL,
            rows.views,
            how=how,
            seed=seed,
            vocabulary=vocabulary,
            generator=generator,
            epoch=epoch,
        )
        own = corrupted_BL.device.type == device.type
        return corrupted_BL if own else pinned(corrupted_BL.cpu().numpy(), device)

    return source


def corrupt_all(
    table: TokenTable,
    folder: Path,
    *,
    how: ReplacedTokensSettings,
    seed: int,
    vocabulary: Vocabulary,
    generator: Generator,
    epochs: int,
    progress: bool = False,
) -> None:
    """Corrupt every view of every row once per epoch, into ``epoch-E-view-V.npy`` (int32, flat like the column).

    ``rows.json`` maps each file to a hash of its source tokens.
    """
    digests = {}
    with tqdm(
        total=epochs * len(table.columns) * len(table), desc="corrupt", unit=" rows", disable=not progress
    ) as bar:
        for epoch in range(epochs):
            for view, column in enumerate(table.columns):
                path = _file(folder, epoch, view)
                flat = np.zeros(column.ids.shape, np.int32)  # not a writable memory map: a full disk would kill us
                for rows, starts, ids_BL, mask_BL in _by_length(column, table.pad_id):
                    index_BL = starts[:, None] + np.arange(ids_BL.shape[1])
                    corrupted_BL = corrupt(
                        ids_BL,
                        mask_BL,
                        index_BL,
                        np.full(len(rows), view),
                        how=how,
                        seed=seed,
                        vocabulary=vocabulary,
                        generator=generator,
                        epoch=epoch,
                    ).cpu()
                    flat[index_BL[mask_BL == 1]] = corrupted_BL.numpy()[mask_BL == 1]
                    bar.update(len(rows))
                write_array(path, flat)
                digests[path.name] = _digest(column)
    (folder / _DIGESTS).write_text(json.dumps(digests, indent=2) + "\n", encoding="utf-8")


def prepared(folder: Path, table: TokenTable, *, epochs: int) -> Source:
    """Return a source that reads the output of ``corrupt_all``; maps the files instead of loading them."""
    flat: dict[tuple[int, int], np.ndarray] = {}
    try:
        digests = json.loads((folder / _DIGESTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise CseError(f"{folder / _DIGESTS}: missing or cut off; {_AGAIN}") from None
    for epoch in range(epochs):
        for view, column in enumerate(table.columns):
            path = _file(folder, epoch, view)
            try:
                flat[epoch, view] = np.load(path, mmap_mode="r")
            except (OSError, ValueError, EOFError):
                raise CseError(f"{path}: missing or cut off; {_AGAIN}") from None
            if flat[epoch, view].shape != column.ids.shape or digests.get(path.name) != _digest(column):
                raise CseError(f"{path}: was made for other rows; {_AGAIN}")

    def source(rows: Rows, device: torch.device, epoch: int) -> torch.Tensor:
        result = rows.ids_BL.copy()
        lengths = rows.mask_BL.sum(axis=1)
        for line, (start, length, view) in enumerate(zip(rows.starts, lengths, rows.views, strict=True)):
            result[line, :length] = flat[epoch, view][start : start + length]
        return on_device([result], device)[0]

    return source


def _file(folder: Path, epoch: int, view: int) -> Path:
    return folder / f"epoch-{epoch}-view-{view}.npy"


def _digest(column: TokenColumn) -> str:
    return hashlib.sha256(column.offsets.tobytes() + column.ids.tobytes()).hexdigest()


def _by_length(column: TokenColumn, pad_id: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the row numbers, starts, ids and mask of chunks of rows of similar length."""
    lengths = np.diff(column.offsets)
    order = np.argsort(lengths, kind="stable")
    for first in range(0, len(order), _CHUNK):
        rows = order[first : first + _CHUNK]
        columns = np.arange(lengths[rows].max())
        mask_BL = columns < lengths[rows, None]
        ids_BL = np.full(mask_BL.shape, pad_id, np.int64)
        starts = column.offsets[rows]
        ids_BL[mask_BL] = column.ids[(starts[:, None] + columns)[mask_BL]]
        yield rows, starts, ids_BL, mask_BL.astype(np.int64)


def source_of_corrupted(
    replaced: ReplacedTokensSettings,
    train: TrainSettings,
    backbone: Backbone,
    table: TokenTable,
    corrupted: Path | None,
    device: torch.device,
    *,
    bf16: bool,
) -> Source:
    """Return where a training takes its corrupted rows from: what the stage prepared, or a generator."""
    if replaced.corrupts_beforehand:
        assert corrupted is not None  # noqa: S101 - stages give it
        _check_facts(corrupted / CORRUPTION_FILE, corruption_facts(replaced, train.seed))
        return prepared(corrupted, table, epochs=train.epochs)
    generator = generator_of(replaced, backbone, table, device, bf16=bf16)
    return on_the_fly(replaced, train.seed, Vocabulary.of(backbone), generator)


def corruption_facts(replaced: ReplacedTokensSettings, seed: int) -> dict[str, Any]:
    """Return everything that affects how rows are corrupted, as JSON values."""
    read = {"mask_share", "choice", "positions", "protect_special"}
    return {"generator": replaced.generator_model, **replaced.model_dump(include=read), "seed": seed}


def _check_facts(path: Path, wanted: dict[str, Any]) -> None:
    """Refuse rows corrupted with other settings: ``cse train -s`` may override those of ``cse corrupt``."""
    again = "run `cse corrupt` (or `dvc repro`) again"
    try:
        made = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise CseError(f"{path}: missing or cut off; {again}") from None
    if made["corruption"] == "none":
        raise CseError(f"{path.parent}: contains no corrupted rows; {again} with the settings of this training")
    for name, value in wanted.items():
        if made[name] != value:
            raise CseError(
                f"{path.parent}: was made with {name} {made[name]!r}, but the settings say {value!r}; {again}"
            )


def generator_of(
    replaced: ReplacedTokensSettings, backbone: Backbone, table: TokenTable, device: torch.device, *, bf16: bool
) -> Generator:
    """Load the generator, in bfloat16 if training is, or count tokens for a unigram generator."""
    if replaced.generator == "unigram":
        vocabulary = Vocabulary.of(backbone)
        return UnigramGenerator([column.ids for column in table.columns], vocabulary.size, vocabulary.special)
    check_generator(replaced)
    dropout = replaced.corruption == "on_the_fly"
    return load_generator(replaced.generator_model, backbone, dropout=dropout, device=device, bf16=bf16)


def check_generator(replaced: ReplacedTokensSettings) -> None:
    """Refuse a folder in place of a hub id, because changes to its files would go unnoticed."""
    key = "objective.replaced_tokens.generator"
    if replaced.generator not in ("unigram", "folder") and Path(replaced.generator).is_dir():
        raise CseError(f"{key}: {replaced.generator} is a folder; set {key}: folder and {key}_folder to its path")
