"""Stage ``mine``: find a hard negative for each prepared pair with the bare backbone.

Training then reads triplets. Unless ``mine.negatives`` is 1, the stage only records that there is nothing to do.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cse.data.store import GROUP, TRAIN_FILE, PreparedData, write_rows
from cse.errors import CseError
from cse.outputs import Kind, publish_folder
from cse.settings import Settings
from cse.settings.groups.backbone import BackboneSettings
from cse.settings.groups.mine import MineSettings
from cse.settings.groups.pooler import PoolerSettings
from cse.settings.groups.train import TrainSettings
from cse.stages.common import MINED, MINING_FILE, PREPARED, run_stage
from cse.stages.mined import mining_facts

if TYPE_CHECKING:
    from cse.model.backbone import Backbone
    from cse.model.static_words import StaticWords

GROUPS = ("mine", "backbone", "pooler", "train")
_BATCH = 64  # texts


def mine_stage(
    settings: Settings,
    *,
    prepared: Path = PREPARED,
    mined: Path = MINED,
    backbone: Backbone | StaticWords | None = None,
) -> None:
    """Mine a hard negative for every pair if the settings ask for it, else publish a folder marked as empty.

    Args:
        settings: how to mine.
        prepared: folder of the pairs.
        mined: folder to write.
        backbone: a backbone that is already open; None: open it.

    Raises:
        CseError: the rows are no pairs, no pair keeps a negative, or the backbone is missing.
    """
    wanted = settings.mine.negatives > 0
    facts: dict[str, object] = {"negatives": settings.mine.negatives}
    with publish_folder(mined, Kind.MINED_ROWS) as folder:
        if wanted:
            found = _mine(prepared, folder, settings.mine, settings.backbone, settings.pooler, settings.train, backbone)
            roles, pooler = settings.train.roles, settings.pooler.kind
            facts |= mining_facts(settings.mine, settings.backbone, pooler, roles, prepared) | found
        (folder / MINING_FILE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    if wanted:
        dropped = f"; {facts['dropped']:,} pairs without one were dropped" if facts["dropped"] else ""
        click.echo(
            f"{mined}: {facts['rows']:,} pairs with a hard negative from {facts['candidates']:,} texts (mean cosine "
            f"{facts['cosine']:.3f}, positives {facts['positive_cosine']:.3f}){dropped}"
        )
    else:
        click.echo("nothing to mine (mine.negatives is 0)")


def _mine(
    prepared: Path,
    folder: Path,
    mine: MineSettings,
    backbone_settings: BackboneSettings,
    pooler: PoolerSettings,
    train: TrainSettings,
    backbone: Backbone | StaticWords | None,
) -> dict[str, object]:
    """Write the triplets and return what became of the pairs."""
    # imported here so that pipelines without mining do not load torch
    from cse.model.sentence_encoder import SentenceEncoder
    from cse.stages.fitting import open_backbone
    from cse.stages.uses import texts_before
    from cse.training import mining
    from cse.training.precision import choose_device

    data = PreparedData(prepared)
    if data.view != "pairs":
        raise CseError(f"{prepared}: contains {data.view}, but mine.negatives needs pairs; run `cse prepare` for them")
    groups = list(data.train[GROUP]) if GROUP in data.train.column_names else None
    pairs = mining.read_pairs(list(data.train["sent0"]), list(data.train["sent1"]), groups)
    encoder = SentenceEncoder.bare(backbone or open_backbone(backbone_settings, pooler, data))
    encoder.to(choose_device(train.device))
    texts_before(encoder, train.roles, "triplets")  # refuses unknown roles
    bar = sys.stderr.isatty()
    of_anchors, of_others = (None, None) if train.roles is None else train.roles[:2]
    others = encoder.encode(pairs.texts, _BATCH, role=of_others, show_progress_bar=bar)
    anchors = others
    if of_anchors != of_others:
        anchors = encoder.encode(pairs.texts, _BATCH, role=of_anchors, show_progress_bar=bar)
    how = mining.Mining(mine.margin, mine.skip_nearest, mine.per_text, mine.exact_rows)
    chosen = mining.mine(pairs, anchors, others, how)
    kept = chosen != mining.NONE
    if not kept.any():
        raise CseError(f"{prepared}: no pair keeps a hard negative; raise mine.margin or lower mine.skip_nearest")
    triplets = mining.triplets(pairs, chosen, groups)
    write_rows(folder / TRAIN_FILE, "triplets", triplets, grouped=groups is not None)
    return {
        "rows": int(kept.sum()),
        "dropped": int((~kept).sum()),
        "candidates": pairs.candidates,
        "cosine": mining.mean_cosine(anchors[pairs.anchor_R[kept]], others[chosen[kept]]),
        "positive_cosine": mining.mean_cosine(anchors[pairs.anchor_R[kept]], others[pairs.positive_R[kept]]),
    }


if __name__ == "__main__":
    run_stage(mine_stage)
