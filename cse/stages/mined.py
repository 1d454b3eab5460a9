"""The rows that training reads: those of ``prepare``, or those that stage ``mine`` made of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cse.data.store import TRAIN_FILE, PreparedData
from cse.errors import CseError
from cse.runtime.seal import read_object, sha256
from cse.settings.data import MineSettings
from cse.settings.model import BackboneSettings
from cse.stages.common import MINING_FILE

if TYPE_CHECKING:
    from cse.model.backbone_files import BackboneFiles


def mining_facts(
    mine: MineSettings, backbone: BackboneSettings, pooler: str | None, roles: Sequence[str] | None, prepared: Path
) -> dict[str, Any]:
    """Return everything that decides which rows are mined but the backbone's content, as JSON values."""
    return {
        "mine": mine.model_dump(mode="json"),
        "backbone": backbone.model_dump(mode="json"),
        "pooler": pooler,
        "roles": None if roles is None else list(roles),
        "source": sha256(prepared / TRAIN_FILE),
    }


_AGAIN = "run `cse mine` (or `dvc repro`) again"
CONTENT = "content"  # hash of the backbone's files: a folder of the same name may hold another one


def check_backbone(mined: Path, mine: MineSettings, files: BackboneFiles) -> None:
    """Refuse rows that were mined with another content of the backbone, once it is open."""
    if mine.wanted and _read(mined).get(CONTENT) != files.content():
        raise CseError(f"{mined}: {files.name} holds another model than the one that mined the rows; {_AGAIN}")


def _read(mined: Path) -> dict[str, Any]:
    path = mined / MINING_FILE
    made = read_object(path, _AGAIN) if path.is_file() else {}
    if "mine" not in made:
        raise CseError(f"{mined}: nothing mined, but the settings ask for it (group mine); {_AGAIN}")
    return made


def rows_to_train(
    mine: MineSettings,
    backbone: BackboneSettings,
    pooler: str | None,
    roles: Sequence[str] | None,
    *,
    prepared: Path,
    mined: Path,
) -> PreparedData:
    """Open the prepared data, with the mined rows for training if mining is on."""
    if not mine.wanted:
        return PreparedData(prepared)
    made = _read(mined)
    data = PreparedData(prepared, rows=mined / TRAIN_FILE)
    wanted = mining_facts(mine, backbone, pooler, roles, prepared)
    other = next((name for name, value in wanted.items() if made.get(name) != value), None)
    if other is not None:
        what = "from other rows" if other == "source" else f"with other settings ({other})"
        raise CseError(f"{mined}: mined {what} than this training's; {_AGAIN}")
    return data
