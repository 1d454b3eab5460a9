"""Follow a stage of the model registry: pull what is promoted with DVC, load it, and hand it over."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from cse.errors import CseError, error_line
from cse.outputs import Kind, publish_folder
from cse.process import only_one
from cse.runtime.bundle import verify
from deploy.server.logs import log
from deploy.server.models import Served

_LONGEST_WAIT = 3600.0
_BUNDLE = "data/bundle"
_LOCK_SECONDS = 600.0


class Follower:
    """Keeps the model of ``NAME@STAGE`` in service.

    Args:
        wanted: ``NAME@STAGE``; a version (``NAME@v1.2.0``) does not move.
        failed: is told when a promotion does not load.
    """

    def __init__(
        self,
        wanted: str,
        *,
        load: Callable[[Path, str, str], Served],
        take: Callable[[Served], object],
        failed: Callable[[], object],
    ) -> None:
        from flows.repository import find_root

        self.name, _, self._stage = wanted.partition("@")
        self._root = find_root()
        self._load, self._take, self._failed = load, take, failed
        self._serving = ""
        self._failures: dict[str, tuple[int, float]] = {}  # by version: how often, and when to try again
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, seconds: float) -> Served:
        """Return the model that is in the stage now, and look for another one every ``seconds``."""
        served = self._fetch(self._promoted())
        self._serving = served.version
        self._thread = threading.Thread(target=self._watch, args=(seconds,), name="follower", daemon=True)
        self._thread.start()
        return served

    def stop(self) -> None:
        """Stop looking."""
        self._over.set()

    def _watch(self, seconds: float) -> None:
        while not self._over.wait(seconds):
            self.look(seconds)

    def look(self, seconds: float) -> None:
        """Look once: if another version is in the stage, load it beside the old one and hand it over.

        A version that fails is tried again, after twice the time each time; the old one goes on serving.
        """
        version = "?"
        try:
            version = self._promoted()
            count, again = self._failures.get(version, (0, 0.0))
            if version == self._serving or time.monotonic() < again:
                return
            served = self._fetch(version)
        except Exception as error:
            count, _ = self._failures.get(version, (0, 0.0))
            self._failures[version] = (count + 1, time.monotonic() + min(_LONGEST_WAIT, seconds * 2**count))
            self._failed()
            message = f"{self.name} {version} was not taken; {self._serving} goes on serving: {error_line(error)}"
            log.error(message)
            return
        self._take(served)
        log.info("%s took over from %s", served.version, self._serving)
        self._serving = version

    def _promoted(self) -> str:
        from flows.registry import fetch_tags, find

        fetch_tags(self._root)
        return find(self._root, self.name, self._stage).version

    def _fetch(self, version: str) -> Served:
        """Return a version, loaded; pulled again if the copy from before is damaged."""
        from cse.stages.common import SCRATCH

        folder = self._root / SCRATCH / "serving" / f"{self.name}@{version}"
        with only_one(folder.with_name(f"{folder.name}.lock"), f"{folder}: another server pulls it", _LOCK_SECONDS):
            try:
                verify(folder)
            except CseError:
                self._pull(version, folder)
        return self._load(folder, self.name, version)

    def _pull(self, version: str, folder: Path) -> None:
        """Put a version's bundle in place; only a bundle of this project is ever replaced."""
        tag = f"{self.name}@{version}"
        with publish_folder(folder, Kind.BUNDLE) as draft:
            pulled = draft / "pulled"
            command = [sys.executable, "-m", "dvc", "get", "--quiet", ".", _BUNDLE, "--rev", tag, "--out", str(pulled)]
            done = subprocess.run(command, cwd=self._root, capture_output=True, text=True, check=False)
            if done.returncode:
                lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
                raise CseError(f"dvc get {tag}: {lines[-1].removeprefix('ERROR: ')}")
            for path in pulled.iterdir():
                path.rename(draft / path.name)
            pulled.rmdir()
