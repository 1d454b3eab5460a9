"""Stage ``train`` in a folder of the test's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cse.settings import Settings
from cse.stages.train import train_stage


def train_in(folder: Path, settings: Settings, prepared: Path, **others: Any) -> dict[str, Any]:
    """Train; what is read and written lies in ``folder``, but for ``prepared`` and what is named."""
    outputs = {name: folder / name for name in ("mined", "corrupted", "checkpoint", "plots", "scratch")}
    return train_stage(settings, **({"prepared": prepared, "metrics": folder / "train.json"} | outputs | others))
