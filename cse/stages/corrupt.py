"""Stage ``corrupt``: corrupt all rows before training, once per epoch (D2CSE).

Training then needs no generator in memory. Unless ``objective.replaced_tokens.corruption`` is ``prepared``, the stage
only records that there is nothing to do.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cse.errors import CseError
from cse.outputs import Kind, publish_folder
from cse.settings import Settings
from cse.settings.model import BackboneSettings
from cse.settings.objective import ReplacedTokensSettings
from cse.settings.train import TrainSettings
from cse.stages.common import CORRUPTED, CORRUPTION_FILE, PREPARED, run_stage

if TYPE_CHECKING:  # torch is loaded only where something is corrupted
    import torch

    from cse.losses.shared import Source
    from cse.model.backbone import Backbone
    from cse.model.mlm_head import Generator
    from cse.training.tokens import TokenTable

GROUPS = ("backbone", "objective", "train")


def corrupt_stage(settings: Settings, *, prepared: Path = PREPARED, corrupted: Path = CORRUPTED) -> None:
    """Corrupt every row for every epoch if the settings ask for it, else publish a folder marked as empty."""
    replaced = settings.objective.replaced_tokens
    wanted = replaced.corrupts_beforehand
    facts: dict[str, object] = {"corruption": "prepared" if wanted else "none"}
    with publish_folder(corrupted, Kind.CORRUPTED_ROWS) as folder:
        if wanted:
            facts |= _corrupt(prepared, folder, settings.backbone, replaced, settings.train)
        (folder / CORRUPTION_FILE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    if wanted:
        click.echo(
            f"{corrupted}: {facts['rows']:,} rows corrupted by {facts['generator']} for {facts['epochs']} epochs"
        )
    else:
        click.echo("nothing to corrupt (objective.replaced_tokens.corruption is on_the_fly or its weight is 0)")


def _corrupt(
    prepared: Path,
    folder: Path,
    backbone_settings: BackboneSettings,
    replaced: ReplacedTokensSettings,
    train: TrainSettings,
) -> dict[str, object]:
    # imported here so that pipelines without replaced-token detection do not load torch
    from cse.data.store import PreparedData
    from cse.losses.masked_lm import Vocabulary
    from cse.model.backbone import load_backbone
    from cse.model.backbone_files import find_backbone
    from cse.training.corruption import corrupt_all
    from cse.training.precision import choose_bf16, choose_device
    from cse.training.tokens import tokenise

    data = PreparedData(prepared)
    files = find_backbone(backbone_settings.name, backbone_settings.revision)
    backbone = load_backbone(files)
    bar = sys.stderr.isatty()
    table = tokenise(
        data.train,
        data.view,
        [backbone.tokenizer],
        max_length=train.max_length,
        pad_id=backbone.pad_id,
        progress=bar,
    )
    device = choose_device(train.device)
    corrupt_all(
        table,
        folder,
        how=replaced,
        seed=train.seed,
        vocabulary=Vocabulary.of(backbone),
        generator=_generator(replaced, backbone, table, device, bf16=choose_bf16(train.precision, device)),
        epochs=train.epochs,
        progress=bar,
    )
    return _facts(replaced, train.seed) | {"rows": len(table), "epochs": train.epochs}


def source_of_corrupted(
    replaced: ReplacedTokensSettings,
    train: TrainSettings,
    backbone: Backbone,
    table: TokenTable,
    corrupted: Path,
    device: torch.device,
    *,
    bf16: bool,
) -> Source:
    """Return where a training takes its corrupted rows from: what the stage prepared, or a generator.

    Args:
        corrupted: folder of rows corrupted before training.
        bf16: whether the generator multiplies in bfloat16.
    """
    from cse.losses.masked_lm import Vocabulary
    from cse.training.corruption import on_the_fly, prepared

    if replaced.corrupts_beforehand:
        _check_facts(corrupted / CORRUPTION_FILE, _facts(replaced, train.seed))
        return prepared(corrupted, table, epochs=train.epochs)
    generator = _generator(replaced, backbone, table, device, bf16=bf16)
    return on_the_fly(replaced, train.seed, Vocabulary.of(backbone), generator)


def _facts(replaced: ReplacedTokensSettings, seed: int) -> dict[str, Any]:
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


def _generator(
    replaced: ReplacedTokensSettings, backbone: Backbone, table: TokenTable, device: torch.device, *, bf16: bool
) -> Generator:
    """Load the generator, in bfloat16 if training is, or count tokens for a unigram generator."""
    from cse.losses.masked_lm import Vocabulary
    from cse.model.mlm_head import UnigramGenerator, load_generator

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


if __name__ == "__main__":
    run_stage(corrupt_stage)
