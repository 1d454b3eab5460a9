"""Stage ``mine``: with the bare backbone, find pairs among plain sentences and a hard negative for each pair.

Training then reads pairs or triplets. Unless group ``mine`` asks for them, the stage only records that there is nothing
to do.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cse.artifact import write_manifest
from cse.data.store import GROUP, TRAIN_FILE, PreparedData, texts_in, write_rows
from cse.errors import CseError
from cse.outputs import Kind, publish_folder
from cse.settings import Settings
from cse.stages.common import MINED, PREPARED, run_stage
from cse.training.mining import CONTENT, mining_facts

if TYPE_CHECKING:
    import numpy as np


GROUPS = ("mine", "backbone", "pooler", "train")
_BATCH = 64  # texts


def mine_stage(
    settings: Settings,
    *,
    prepared: Path = PREPARED,
    mined: Path = MINED,
) -> None:
    """Mine the rows that the settings ask for, or publish a folder marked as empty."""
    facts: dict[str, object] = {"negatives": settings.mine.negatives}
    with publish_folder(mined, Kind.MINED_ROWS) as folder:
        if settings.mine.wanted:
            facts |= mining_facts(settings, prepared) | _mine(prepared, folder, settings)
        write_manifest(folder, Kind.MINED_ROWS, facts)
    nothing = "no rows to mine: mine.neighbours and mine.negatives are 0"
    click.echo(f"{mined}: {_told(facts)}" if settings.mine.wanted else nothing)


def _told(facts: Mapping[str, Any]) -> str:
    rows = f"{facts['rows']:,} pairs"
    if facts["neighbours"]:
        rows += f" of neighbours among {facts['sentences']:,} sentences"
    if not facts["negatives"]:
        return f"{rows} (mean cosine {facts['positive_cosine']:.3f})"
    dropped = f"; {facts['dropped']:,} pairs without one were dropped" if facts["dropped"] else ""
    return (
        f"{rows} with a hard negative from {facts['candidates']:,} texts (mean cosine {facts['cosine']:.3f}, positives "
        f"{facts['positive_cosine']:.3f}){dropped}"
    )


def _mine(prepared: Path, folder: Path, settings: Settings) -> dict[str, object]:
    """Write the rows and return what became of them."""
    # imported here so that pipelines without mining do not load torch
    from cse.model.device import choose_device
    from cse.model.sentence_encoder import SentenceEncoder
    from cse.training import mining
    from cse.training.encoder import open_backbone, texts_before

    data, mine, train = PreparedData(prepared), settings.mine, settings.train
    wanted, key = ("sentences", "neighbours") if mine.neighbours else ("pairs", "negatives")
    if data.view != wanted:
        raise CseError(f"{prepared}: contains {data.view}, but mine.{key} needs {wanted}; run `cse prepare` for them")
    backbone = open_backbone(settings.backbone, settings.pooler, data)
    encoder = SentenceEncoder(backbone)
    encoder.to(choose_device(train.device))
    texts_before(encoder, train.roles, mine.view(data.view))  # refuses unknown roles

    def encode(texts: list[str], role: str | None = None) -> np.ndarray:
        return encoder.encode(texts, _BATCH, role=role, show_progress_bar=sys.stderr.isatty())

    facts: dict[str, object] = {"neighbours": mine.neighbours, CONTENT: backbone.files.content()}
    groups = None
    if mine.neighbours:
        sentences = list(dict.fromkeys(texts_in(data.train, "sent0")))
        vectors = encode(sentences)
        numbers = mining.mutual_neighbours(vectors, mine.neighbours)
        if not len(numbers):
            raise CseError(f"{prepared}: no two sentences are among each other's nearest; raise mine.neighbours")
        first, second = ([sentences[number] for number in column] for column in numbers.T)
        facts["sentences"] = len(sentences)
    else:
        first, second = (list(texts_in(data.train, name)) for name in ("sent0", "sent1"))
        groups = list(texts_in(data.train, GROUP)) if GROUP in data.train.column_names else None
    if not mine.negatives:
        write_rows(folder / TRAIN_FILE, "pairs", zip(first, second, strict=True))
        cosine = mining.mean_cosine(vectors[numbers[:, 0]], vectors[numbers[:, 1]])
        return facts | {"rows": len(first), "positive_cosine": cosine}
    pairs = mining.read_pairs(first, second, groups)
    of_anchors, of_others = (None, None) if train.roles is None else train.roles[:2]
    others = encode(pairs.texts, of_others)
    anchors = others if of_anchors == of_others else encode(pairs.texts, of_anchors)
    chosen = mining.mine(pairs, anchors, others, mine.margin)
    kept = chosen != mining.NONE
    if not kept.any():
        raise CseError(f"{prepared}: no pair keeps a hard negative; raise mine.margin")
    triplets = mining.triplets(pairs, chosen, groups)
    write_rows(folder / TRAIN_FILE, "triplets", triplets, grouped=groups is not None)
    return facts | {
        "rows": int(kept.sum()),
        "dropped": int((~kept).sum()),
        "candidates": pairs.candidates,
        "cosine": mining.mean_cosine(anchors[pairs.anchor_R[kept]], others[chosen[kept]]),
        "positive_cosine": mining.mean_cosine(anchors[pairs.anchor_R[kept]], others[pairs.positive_R[kept]]),
    }


if __name__ == "__main__":
    run_stage(mine_stage)
