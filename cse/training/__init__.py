"""The training loop, its resumable state and its observers. Dimension letters: see ``cse.model``."""

from __future__ import annotations

from pathlib import Path

# whole folders, so as not to duplicate the list in dvc.yaml; restarting a killed run is cheap
_TRAINS = (*("adapt", "data", "evaluation", "losses", "model", "runtime", "search", "stages", "training", "tune"),)


def training_code() -> list[Path]:
    """Return the code files that affect updates or which weights are kept; a change makes a saved state stale.

    Sweeps and adaptations use the list too. A test compares it with the imports of stage ``train``.
    """
    root = Path(__file__).parents[1]
    inside = [path for folder in _TRAINS for path in sorted((root / folder).rglob("*.py"))]
    return [root / "ray_session.py", root / "storage.py", *inside]
