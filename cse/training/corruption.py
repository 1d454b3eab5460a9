"""Corrupted copies of rows for replaced-token detection (DiffCSE's code; methods of D2CSE).

Every random choice is a hash of (seed, epoch, view, index of the token in its column), so corrupting a batch during
training gives the same result as corrupting all rows beforehand.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from cse.artifact import Kind
from cse.errors import CseError
from cse.files import write_array
from cse.losses.masked_lm import Vocabulary, mask_tokens, uniform
from cse.losses.shared import PaddedRows, Source
from cse.model.backbone import Backbone
from cse.model.mlm_head import Generator, UnigramGenerator, load_generator
from cse.model.passes import on_device, pinned
from cse.runtime.tokens import Tokens
from cse.settings.objective import ReplacedTokensSettings
from cse.settings.train import TrainSettings
from cse.training.batch import TokenTable, pad_in_groups

_CHUNK = 256  # rows per generator pass when corrupting all rows beforehand
_MANIFEST = Kind.CORRUPTED_ROWS.manifest
_AGAIN = "run `cse prepare` (or `dvc repro`) again"
_CHOOSE = 3  # stream of random numbers, after those of masking
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Corrupter:
    """Replaces tokens with a generator's proposals; a ``Source`` that corrupts each slice during training."""

    how: ReplacedTokensSettings
    seed: int
    vocabulary: Vocabulary
    generator: Generator

    def __call__(self, rows: PaddedRows, device: torch.device, epoch: int) -> torch.Tensor:
        """Return corrupted ids ``(B, L)``, int64; the first token and padding stay."""
        how, ids_BL, mask_BL, place = self.how, rows.ids_BL, rows.mask_BL, (rows.index_BL, rows.views)
        masked_BL, chosen_BL = mask_tokens(
            ids_BL, mask_BL, *place, self.vocabulary, share=how.mask_share, seed=self.seed, epoch=epoch
        )
        draws = how.choice == "sample" or not self.generator.reads_context
        draw_BL = uniform(self.seed, epoch, rows.views, rows.index_BL, _CHOOSE) if draws else None
        proposed_BL = self.generator.propose(masked_BL, mask_BL, draw_BL)
        everywhere = how.positions == "all" and self.generator.reads_context
        taken_BL = (mask_BL == 1) if everywhere else chosen_BL
        if how.protect_special:
            taken_BL = taken_BL & ~np.isin(ids_BL, self.vocabulary.special)
        taken_BL[:, 0] = False
        taken, kept = (pinned(array, proposed_BL.device) for array in (taken_BL, ids_BL))
        corrupted_BL = torch.where(taken, proposed_BL, kept)
        own = corrupted_BL.device.type == device.type
        return corrupted_BL if own else pinned(corrupted_BL.cpu().numpy(), device)


def corrupter_of(
    how: ReplacedTokensSettings,
    train: TrainSettings,
    backbone: Backbone,
    table: TokenTable,
    *,
    device: torch.device,
    bf16: bool,
) -> Corrupter:
    """Load the generator, in bfloat16 if training is, or count the table's tokens for a unigram generator."""
    vocabulary = Vocabulary.of(backbone)
    if how.generator == "unigram":
        counted = UnigramGenerator([column.ids for column in table.columns], vocabulary.size, vocabulary.special)
        return Corrupter(how, train.seed, vocabulary, counted)
    check_generator(how)
    dropout = how.corruption == "on_the_fly"
    loaded = load_generator(how.generator_model, backbone, dropout=dropout, device=device, bf16=bf16)
    return Corrupter(how, train.seed, vocabulary, loaded)


def check_generator(replaced: ReplacedTokensSettings) -> None:
    """Refuse a folder in place of a hub id, because changes to its files would go unnoticed."""
    key = "objective.replaced_tokens.generator"
    if replaced.generator not in ("unigram", "folder") and Path(replaced.generator).is_dir():
        raise CseError(f"{key}: {replaced.generator} is a folder; set {key}: folder and {key}_folder to its path")


# ---- all rows before training -------------------------------------------------------------------------------------


def corrupt_all(table: TokenTable, folder: Path, corrupter: Corrupter, *, epochs: int) -> dict[str, str]:
    """Corrupt every view of every row once per epoch, into ``epoch-E-view-V.npy`` (int32, flat like the column).

    Returns a hash of the source tokens of each file.
    """
    digests = {}
    with tqdm(total=epochs * len(table.columns) * len(table), desc="corrupt", unit=" rows", disable=None) as bar:
        for epoch in range(epochs):
            for view, column in enumerate(table.columns):
                path = _file(folder, epoch, view)
                flat = np.zeros(column.ids.shape, np.int32)  # not a writable memory map: a full disk would kill us
                order = np.argsort(column.lengths, kind="stable")
                for first in range(0, len(order), _CHUNK):
                    rows = order[first : first + _CHUNK]
                    (part,) = pad_in_groups(TokenTable((column,), table.pad_id), rows, 1)
                    part.views[:] = view
                    real_BL = part.mask_BL == 1
                    flat[part.index_BL[real_BL]] = corrupter(part, _CPU, epoch).numpy()[real_BL]
                    bar.update(len(rows))
                write_array(path, flat)
                digests[path.name] = _digest(column)
    return digests


def corruption_facts(replaced: ReplacedTokensSettings, seed: int) -> dict[str, Any]:
    """Return everything that affects how rows are corrupted, as JSON values."""
    read = {"mask_share", "choice", "positions", "protect_special"}
    return {"generator": replaced.generator_model, **replaced.model_dump(include=read), "seed": seed}


def check_corrupted(folder: Path, wanted: dict[str, Any]) -> None:
    """Refuse rows corrupted with other settings: ``cse train -s`` may override those of ``cse prepare``."""
    made = _read(folder / _MANIFEST)
    if made["corruption"] == "none":
        raise CseError(f"{folder}: contains no corrupted rows; {_AGAIN} with the settings of this training")
    for name, value in wanted.items():
        if made[name] != value:
            raise CseError(f"{folder}: was made with {name} {made[name]!r}, but the settings say {value!r}; {_AGAIN}")


def prepared(folder: Path, table: TokenTable, *, epochs: int) -> Source:
    """Return a source that reads the output of ``corrupt_all``; maps the files instead of loading them."""
    flat: dict[tuple[int, int], np.ndarray] = {}
    digests = _read(folder / _MANIFEST).get("tokens", {})
    for epoch in range(epochs):
        for view, column in enumerate(table.columns):
            path = _file(folder, epoch, view)
            flat[epoch, view] = _read(path)
            if flat[epoch, view].shape != column.ids.shape or digests.get(path.name) != _digest(column):
                raise CseError(f"{path}: was made for other rows; {_AGAIN}")

    def source(rows: PaddedRows, device: torch.device, epoch: int) -> torch.Tensor:
        result = rows.ids_BL.copy()
        lengths = rows.mask_BL.sum(axis=1)
        for line, (start, length, view) in enumerate(zip(rows.starts, lengths, rows.views, strict=True)):
            result[line, :length] = flat[epoch, view][start : start + length]
        return on_device([result], device)[0]

    return source


def _read(path: Path) -> Any:
    """Return a JSON file's tree, or an array as a memory map."""
    try:
        if path.suffix == ".npy":
            return np.load(path, mmap_mode="r")
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, EOFError):
        raise CseError(f"{path}: missing or cut off; {_AGAIN}") from None


def _file(folder: Path, epoch: int, view: int) -> Path:
    return folder / f"epoch-{epoch}-view-{view}.npy"


def _digest(column: Tokens) -> str:
    return hashlib.sha256(column.starts.tobytes() + column.ids.tobytes()).hexdigest()
