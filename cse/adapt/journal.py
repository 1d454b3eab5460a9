"""What an adaptation has done so far, so that a killed one goes on where it was."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from cse.adapt.made import remove
from cse.errors import CseError
from cse.files import fingerprint
from cse.outputs import publish_file

JOURNAL = "journal.json"


class Journal:
    """Steps that are done, with the seconds that each took.

    Args:
        folder: of the adaptation.
        facts: settings that its results depend on; another adaptation's folder is refused.
        files: with the user's text.
        again: whether to delete another adaptation in place of refusing it.

    Raises:
        CseError: the folder belongs to another adaptation, or its journal is damaged.
    """

    def __init__(self, folder: Path, facts: Mapping[str, Any], files: Iterable[Path], *, again: bool = False) -> None:
        self.path = folder / JOURNAL
        self.identity = fingerprint(dict(facts), files)
        self.steps: dict[str, Any] = {}
        if again and self._other():
            remove(folder)
        if not self.path.is_file():
            if folder.is_dir() and any(folder.iterdir()):
                raise CseError(f"{folder}: holds something else; name another folder with --out")
            folder.mkdir(parents=True, exist_ok=True)
            self._write()
            return
        tree = self._read()
        if tree is None:
            raise CseError(f"{self.path}: no journal of an adaptation, or damaged; name another folder with --out")
        if tree["identity"] != self.identity:
            raise CseError(
                f"{folder}: an adaptation to other text, or with other settings; name another folder with --out, or "
                "delete this one with --again"
            )
        self.steps = tree["steps"]

    def _read(self) -> dict[str, Any] | None:
        """Return the journal; None if it is damaged."""
        try:
            tree = json.loads(self.path.read_text(encoding="utf-8"))
            return {"identity": tree["identity"], "steps": dict(tree["steps"])}
        except (ValueError, KeyError, TypeError):
            return None

    def _other(self) -> bool:
        """Whether the folder is that of another adaptation; a journal that cannot be read says nothing."""
        tree = self._read() if self.path.is_file() else None
        return tree is not None and tree["identity"] != self.identity

    @property
    def seconds(self) -> float:
        """Time that all steps took."""
        return float(sum(step["seconds"] for step in self.steps.values()))

    def took(self, *names: str) -> float:
        """Return the time that some steps took, 0 for those that are not done."""
        return float(sum(self.steps.get(name, {"seconds": 0})["seconds"] for name in names))

    def run(self, name: str, work: Callable[[], Any]) -> Any:
        """Do a step unless it is done, and return its result, a JSON value."""
        if name not in self.steps:
            start = time.monotonic()
            result = work()
            self.steps[name] = {"seconds": round(time.monotonic() - start, 3), "result": result}
            self._write()
        return self.steps[name]["result"]

    def _write(self) -> None:
        with publish_file(self.path) as target:
            tree = {"identity": self.identity, "steps": self.steps}
            target.write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")
