"""The rows that training reads: those of ``prepare``, or the triplets that stage ``mine`` made of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cse.data.store import TRAIN_FILE, PreparedData
from cse.errors import CseError
from cse.runtime.seal import sha256
from cse.settings.groups.backbone import BackboneSettings
from cse.settings.groups.mine import MineSettings
from cse.stages.common import MINING_FILE


def mining_facts(
    mine: MineSettings, backbone: BackboneSettings, pooler: str | None, roles: Sequence[str] | None, prepared: Path
) -> dict[str, Any]:
    """Return everything that decides which negatives are mined, as JSON values."""
    return {
        "mine": mine.model_dump(mode="json"),
        "backbone": backbone.model_dump(mode="json"),
        "pooler": pooler,
        "roles": None if roles is None else list(roles),
        "pairs": sha256(prepared / TRAIN_FILE),
    }


def rows_to_train(
    mine: MineSettings,
    backbone: BackboneSettings,
    pooler: str | None,
    roles: Sequence[str] | None,
    *,
    prepared: Path,
    mined: Path,
) -> PreparedData:
    """Open the prepared data, with the mined triplets as training rows if mining is on.

    Raises:
        CseError: the data are missing, or the triplets were mined from other pairs or with other settings.
    """
    if mine.negatives == 0:
        return PreparedData(prepared)
    again = "run `cse mine` (or `dvc repro`) again"
    path = mined / MINING_FILE
    try:
        made = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CseError(f"{mined}: no mined negatives, but mine.negatives is 1; {again}") from None
    except ValueError:
        raise CseError(f"{path}: cut off or changed by hand; {again}") from None
    if made.get("negatives") != mine.negatives:
        raise CseError(f"{mined}: holds no mined negatives, but mine.negatives is 1; {again}")
    data = PreparedData(prepared, rows=mined / TRAIN_FILE)
    wanted = mining_facts(mine, backbone, pooler, roles, prepared)
    other = next((name for name, value in wanted.items() if made.get(name) != value), None)
    if other is not None:
        what = "from other pairs" if other == "pairs" else f"with other settings ({other})"
        raise CseError(f"{mined}: mined {what} than this training's; {again}")
    return data
