"""Stage ``corrupt``: corrupt all rows before training, once per epoch (D2CSE).

Training then needs no generator in memory. Unless ``objective.replaced_tokens.corruption`` is ``prepared``, the stage
only records that there is nothing to do.
"""

from __future__ import annotations

from pathlib import Path

import click

from cse.artifact import write_manifest
from cse.outputs import Kind, publish_folder
from cse.settings import Settings
from cse.stages.common import CORRUPTED, PREPARED, run_stage

GROUPS = ("backbone", "objective", "train")


def corrupt_stage(settings: Settings, *, prepared: Path = PREPARED, corrupted: Path = CORRUPTED) -> None:
    """Corrupt every row for every epoch if the settings ask for it, else publish a folder marked as empty."""
    replaced = settings.objective.replaced_tokens
    wanted = replaced.corrupts_beforehand
    facts: dict[str, object] = {"corruption": "prepared" if wanted else "none"}
    with publish_folder(corrupted, Kind.CORRUPTED_ROWS) as folder:
        if wanted:
            facts |= _corrupt(prepared, folder, settings)
        write_manifest(folder, Kind.CORRUPTED_ROWS, facts)
    if wanted:
        click.echo(
            f"{corrupted}: {facts['rows']:,} rows corrupted by {facts['generator']} for {facts['epochs']} epochs"
        )
    else:
        click.echo("nothing to corrupt (objective.replaced_tokens.corruption is on_the_fly or its weight is 0)")


def _corrupt(prepared: Path, folder: Path, settings: Settings) -> dict[str, object]:
    # imported here so that pipelines without replaced-token detection do not load torch
    from cse.data.store import PreparedData
    from cse.model.backbone import load_backbone
    from cse.model.backbone_files import find_backbone
    from cse.model.device import choose_bf16, choose_device
    from cse.training.batch import tokenise
    from cse.training.corruption import corrupt_all, corrupter_of, corruption_facts

    data, replaced, train = PreparedData(prepared), settings.objective.replaced_tokens, settings.train
    # how it pools changes no token, and only the training is told (pooler.kind)
    backbone = load_backbone(find_backbone(settings.backbone.name, settings.backbone.revision), "mean", dense=False)
    table = tokenise(
        data.train,
        data.view,
        [backbone.tokenizer],
        max_length=train.max_length,
        pad_id=backbone.pad_id,
    )
    device = choose_device(train.device)
    bf16 = choose_bf16(train.precision, device)
    corrupter = corrupter_of(replaced, train, backbone, table, device=device, bf16=bf16)
    tokens = corrupt_all(table, folder, corrupter, epochs=train.epochs)
    made = {"rows": len(table), "epochs": train.epochs, "tokens": tokens}
    return corruption_facts(replaced, train.seed) | made


if __name__ == "__main__":
    run_stage(corrupt_stage)
