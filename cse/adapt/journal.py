"""What an adaptation has done so far, so that a killed one goes on where it was."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from cse.adapt.made import is_whole, remove
from cse.errors import CseError
from cse.files import fingerprint, write_sealed
from cse.outputs import publish_file
from cse.runtime.seal import read_sealed

JOURNAL, PLAN = "journal.json", "plan"
_ELSEWHERE = "name another folder with --out"


class Journal:
    """Steps that are done, with the seconds that each took.

    Args:
        folder: of the adaptation.
        facts: settings that its results depend on; another adaptation's folder is refused.
        files: with the user's text.
        asked: what the plan follows from; once there is one, a folder planned for something else is refused.
        again: whether to delete another adaptation in place of refusing it.

    Raises:
        CseError: the folder belongs to another adaptation, or its journal is damaged.
    """

    def __init__(
        self,
        folder: Path,
        facts: Mapping[str, Any],
        files: Iterable[Path],
        *,
        asked: Mapping[str, Any],
        again: bool = False,
    ) -> None:
        self.path = folder / JOURNAL
        self.identity, self.asked = fingerprint(dict(facts), files), dict(asked)
        self.steps: dict[str, Any] = {}
        if self.path.is_file():
            tree = read_sealed(self.path, _ELSEWHERE)
            steps = tree.get("steps")
            if not isinstance(steps, dict):
                raise CseError(f"{self.path}: no journal of an adaptation; {_ELSEWHERE}")
            if tree.get("identity") == self.identity and (PLAN not in steps or tree.get("asked") == self.asked):
                self.steps = steps
                return
            if not again:
                raise CseError(
                    f"{folder}: an adaptation to other text, or with other settings, --budget or backbone (shared or "
                    f"own); {_ELSEWHERE}, or delete this one with --again"
                )
            remove(folder)
        elif folder.is_dir() and any(folder.iterdir()):
            raise CseError(f"{folder}: holds something else; {_ELSEWHERE}")
        folder.mkdir(parents=True, exist_ok=True)
        self._write()

    @property
    def seconds(self) -> float:
        """Time that all steps took."""
        return float(sum(step["seconds"] for step in self.steps.values()))

    def took(self, name: str) -> float:
        """Return the time that a step took."""
        return float(self.steps[name]["seconds"])

    def forget(self, names: Iterable[str]) -> None:
        """Take steps as not done: something else is to stand where their output is."""
        if known := self.steps.keys() & set(names):
            self.steps = {name: step for name, step in self.steps.items() if name not in known}
            self._write()

    def run(self, name: str, work: Callable[[], Any], makes: Iterable[Path] = ()) -> Any:
        """Do a step unless it is done, and return its result, a JSON value.

        Args:
            name: of the step.
            work: does it.
            makes: its outputs; if one is missing, the step is done again.
        """
        missing = [path for path in makes if not is_whole(path)] if name in self.steps else []
        if missing:
            click.echo(f"{missing[0]}: missing, or not whole; making it again ({name})", err=True)
        if missing or name not in self.steps:
            start = time.monotonic()
            result = work()
            before = self.steps.get(name, {"seconds": 0.0})["seconds"]
            self.steps[name] = {"seconds": round(before + time.monotonic() - start, 3), "result": result}
            self._write()
        return self.steps[name]["result"]

    def _write(self) -> None:
        with publish_file(self.path) as target:
            write_sealed(target, {"identity": self.identity, "asked": self.asked, "steps": self.steps})
