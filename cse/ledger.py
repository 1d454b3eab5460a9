"""A ledger keeps one record per run, so that a killed plan goes on where it was and does nothing twice.

A run is what takes its time: a training, a measure, a decision. Its record is a sealed file, written in one go once the
run has ended. Where a plan finds the record of another one, it refuses it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from cse.artifact import SEAL, is_whole, read_sealed, write_sealed
from cse.errors import CseError, reason_of
from cse.outputs import publish_file

RUN = "run"  # name of the record of a run that has a folder of its own
_ABSENT = "absent"  # in messages too, of a key that one side lacks


class OtherPlanError(CseError):
    """What is on record depends on something else than the plan's run."""


@dataclass(frozen=True)
class RunRecord:
    """A run that ended, with its result, a JSON value, or the reason why it failed, in one line.

    Attributes:
        of: what it depends on: settings by dotted key, fingerprints by what they are of, in words.
    """

    of: Mapping[str, Any]
    result: Any = None
    reason: str = ""
    seconds: float = 0.0

    def changed(self, of: Mapping[str, Any]) -> str | None:
        """Return the first key with another value in ``of``, or that one side alone has; None if they are alike."""
        now = json.loads(json.dumps(dict(of)))
        return next((key for key in {**now, **self.of} if now.get(key, _ABSENT) != self.of.get(key, _ABSENT)), None)


@dataclass(frozen=True)
class Ledger:
    """The records of runs; a run is named as its record is, without ``.json``.

    Attributes:
        otherwise: what to do about a damaged record, to end an error message with.
    """

    folder: Path
    otherwise: str = "delete it to train this one again"

    def names(self) -> list[str]:
        """Return the names of the runs on record, in order."""
        return sorted(path.name.removesuffix(".json") for path in self.folder.glob("*.json"))

    def read(self, name: str) -> RunRecord | None:
        """Return the record of a run, None if it has not ended."""
        path = self._path(name)
        if not path.is_file():
            return None
        tree = read_sealed(path, self.otherwise)
        if {*tree} != {*RunRecord.__dataclass_fields__, SEAL}:
            raise CseError(f"{path}: no record of a run; {self.otherwise}")
        return RunRecord(**{key: value for key, value in tree.items() if key != SEAL})

    def write(self, name: str, record: RunRecord) -> None:
        """Put a run on record."""
        with publish_file(self._path(name)) as target:
            write_sealed(target, asdict(record))

    def forget(self, *names: str) -> None:
        """Take runs off the record: they are done again."""
        for name in names:
            self._path(name).unlink(missing_ok=True)

    def check(self, name: str, of: Mapping[str, Any], what: str, otherwise: str) -> RunRecord | None:
        """Return the record of a run, None if it has not ended; refuse that of another plan.

        Raises:
            OtherPlanError: it depended on something else; the message says on what.
        """
        record = self.read(name)
        if record is None or (key := record.changed(of)) is None:
            return record
        before, now = (side.get(key, _ABSENT) for side in (record.of, of))
        change = f"{key} changed since" if " " in key else f"{key} was {before} and is {now} now"
        raise OtherPlanError(f"{what}: {change}; {otherwise}")

    def run(
        self,
        name: str,
        work: Callable[[], Any],
        *,
        of: Mapping[str, Any] | None = None,
        makes: Iterable[Path] = (),
        fails: Callable[[Exception], bool] = lambda error: False,
    ) -> RunRecord:
        """Do a run unless it is on record, and return its record.

        It is done again if it depends on something else by now, or one of its outputs is missing.

        Args:
            work: does it and returns its result, a JSON value.
            fails: whether an error is the run's own: it goes on record, and the run is not done again.

        Raises:
            Exception: what ``work`` raises and ``fails`` denies; nothing goes on record.
        """
        of, found = dict(of or {}), self.read(name)
        if found is not None and found.changed(of):
            self.forget(name)
            found = None
        if found is not None:
            missing = [path for path in makes if not is_whole(path)]
            if found.reason or not missing:
                return found
            click.echo(f"{missing[0]}: missing, or not whole; making it again ({name})", err=True)
        before, start, result, reason = found.seconds if found else 0.0, time.monotonic(), None, ""
        try:
            result = json.loads(json.dumps(work()))  # as it is read again
        except Exception as error:
            if not fails(error):
                raise
            reason = reason_of(error)
        record = RunRecord(of, result, reason, round(before + time.monotonic() - start, 3))
        self.write(name, record)
        return record

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"
