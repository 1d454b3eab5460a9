"""What an adaptation starts from: the defaults, whatever an earlier run left in params.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cse.settings import PARAMS_FILE, Settings, load_settings
from cse.settings.load import check_known, check_settings, flatten, set_key

# the backbone, the machine and the form of the bundle; all else is how some run trained, or on what
_TAKEN = ("backbone.", "evaluation.", "export.", "train.device", "train.precision")


def base_settings(params: Path, values: Mapping[str, Any], *, named: bool = False) -> tuple[Settings, str | None]:
    """Return the settings of an adaptation, and in words what the file would have changed in them.

    Args:
        params: the settings file. Of params.yaml the backbone, the machine and the form of the bundle are taken; a file
            that was named is taken whole, but for its data and dev measure.
    """
    there = params.exists() or named or params != PARAMS_FILE
    file = flatten(load_settings(params, any_view=True).model_dump(mode="json")) if there else {}
    usual = flatten(Settings().model_dump(mode="json"))

    def takes(key: str) -> bool:
        return not key.startswith("data.") and key != "train.dev_measure" if named else key.startswith(_TAKEN)

    changed = {key: value for key, value in file.items() if usual.get(key) != value}
    tree: dict[str, Any] = {}
    for key, value in ({key: value for key, value in changed.items() if takes(key)} | dict(values)).items():
        check_known(key)
        set_key(tree, key, value)
    settings = check_settings(tree, where="the settings of an adaptation")
    left = {key: value for key, value in changed.items() if not takes(key) and key not in values}
    return settings, _told(params, left)


def _told(params: Path, left: Mapping[str, Any]) -> str | None:
    if not left:
        return None
    shown = ", ".join(f"{key} {value}" for key, value in left.items())
    shown = shown if len(shown) <= 200 else f"{shown[:200]}..."
    return f"an adaptation starts from the defaults; not taken from {params}: {shown} (-s sets a value)"
