"""Run the blocks of a page in a copy of a finished clone, as a reader would who copies them into a shell."""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from ruamel.yaml import YAML
from sybil import Document, Example, Region, Sybil

from tests.flows.prefect_server import end_group, free_port, new_home, share_database
from tests.pages.blocks import PAGES, Block, blocks_of
from tests.pipeline.finished import of_pages
from tests.pipeline.workspace import ROOT, Workspace
from tests.waiting import wait_for

# Commands that stay: they go on in the background until the page ends or they are started anew. The port that the pages
# name, of which a free one takes the place (None: it listens on none), and the route that answers once it is ready.
SERVERS = {
    "cse serve ": (8080, "/ready"),
    "prefect server start": (4200, "/api/health"),
    "prefect worker start": (None, ""),
    "tensorboard ": (6006, "/"),
}


class Page:
    """A page's state while its blocks run: its clone, the shell's variables, servers."""

    def __init__(self, finished: Workspace, folder: Path) -> None:
        self.finished, self.folder = finished, folder
        self.ports = {port: free_port() for port, _ in SERVERS.values() if port}
        self.servers: dict[str, subprocess.Popen[bytes]] = {}
        self.python: list[str] = []
        self.clones = 0
        share_database(finished.folder.parents[1])
        new_home(folder / "prefect")
        self.renew()

    def renew(self) -> None:
        """Go on in another copy of the finished clone."""
        self.clones += 1
        self.clone = self.finished.copy(self.folder / str(self.clones) / "clone")
        (self.clone.folder / ".venv").symlink_to(Path(self.clone.python).parents[1])
        self.clone.environment |= {
            **of_pages(self.finished),
            "PREFECT_HOME": str(self.folder / "prefect"),
            "DO_NOT_TRACK": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }

    def run(self, block: Block) -> None:
        """Run what is not marked of a block; raises AssertionError with its output if it fails."""
        if block.fresh:
            self.renew()
        self.commands(block.first)
        if block.language in ("sh", "bash"):
            self.commands(block.commands())
        elif block.language == "python":
            self.python = [*self.python, block.text] if block.continues else [block.text]
            self.shell(["python -c " + shlex.quote("\n".join(self.python))])
        elif block.language == "yaml":
            self.set_params(block.text)
        else:
            raise AssertionError(f"nothing runs {block.language or 'plain'} blocks: mark it")

    def commands(self, commands: list[str]) -> None:
        """Run commands of a shell in turn; those that serve stay in the background."""
        waiting: list[str] = []
        for command in commands:
            if name := next((name for name in SERVERS if re.match(rf"(\w+=\S+ )*{name}", command)), None):
                self.shell(waiting)
                waiting = []
                self.serve(name, command)
            else:
                waiting.append(command)
        self.shell(waiting)

    def shell(self, commands: list[str]) -> None:
        """Run commands in one shell that keeps the variables of the one before; stop at the first that fails."""
        if not commands:
            return
        state = self.folder / "variables"
        script = [f"test -f {state} && . {state}", "set -eo pipefail", *commands, f"export -p >{state}"]
        done = subprocess.run(
            ["bash", "-c", self.on_free_ports("\n".join(script))], cwd=self.clone.folder, timeout=1500, text=True,
            env=self.clone.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, f"{commands}\nended with {done.returncode}:\n{done.stdout}"

    def serve(self, name: str, command: str) -> None:
        """Start a server on a free port and wait until it answers; one of its name that runs is stopped."""
        self.stop(name)
        (named, route), log = SERVERS[name], self.folder / f"{name.split()[0]}.log"
        port, state = self.ports.get(named), self.folder / "variables"
        command = re.sub(r"\s+#.*", "", command) + (f" --port {port}" if port else "")
        script = self.on_free_ports(f"test -f {state} && . {state}\nexec env {command}")
        with log.open("wb") as stream:
            self.servers[name] = started = subprocess.Popen(
                ["bash", "-c", script], cwd=self.clone.folder, stdout=stream, stderr=stream,
                env=self.clone.environment, start_new_session=True,
            )  # fmt: skip

        def answers() -> bool:
            assert started.poll() is None, f"{command}\nended:\n{log.read_text()}"
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(f"http://127.0.0.1:{port}{route}", timeout=5).is_success
            return False

        if port:
            wait_for(answers, tell=lambda: f"{command}\n{log.read_text()}")

    def stop(self, name: str) -> None:
        """Stop a server with all that it started."""
        if started := self.servers.pop(name, None):
            os.killpg(started.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(30)
            end_group(started)

    def close(self) -> None:
        """Stop every server, the last first, and remove the copies."""
        for name in reversed(list(self.servers)):
            self.stop(name)
        shutil.rmtree(self.folder)

    def on_free_ports(self, text: str) -> str:
        """Return commands or code with the ports that the pages name replaced."""
        return re.sub(r"(?<=127\.0\.0\.1:)\d+", lambda port: str(self.ports.get(int(port[0]), port[0])), text)

    def set_params(self, text: str) -> None:
        """Write a block of YAML, groups of settings, into ``params.yaml``."""
        groups = YAML(typ="safe", pure=True).load(text)
        self.clone.set({f"{group}.{name}": value for group, of in groups.items() for name, value in of.items()})
        self.clone.run(self.clone.python, "-m", "cse.settings.document")


def parse(document: Document) -> Iterator[Region]:
    """Yield a region for each code block of a page."""
    for block in blocks_of(document.text):
        yield Region(block.start, block.end, parsed=block, evaluator=evaluate)


def evaluate(example: Example) -> None:
    """Run a block."""
    names = example.namespace
    if "page" not in names:
        folder = names["tmp_path_factory"].mktemp(Path(example.path).stem)
        names["page"] = Page(names["clone_for_pages"], folder)
    names["page"].run(example.parsed)


def close(names: dict[str, Any]) -> None:
    """Stop what the page started."""
    if "page" in names:
        names["page"].close()


class Pages(Sybil):
    """The pages of the project, and no other file."""

    def should_parse(self, path: Path) -> bool:
        """Whether a file is a page."""
        return path in PAGES


pages = Pages(parsers=[parse], fixtures=["clone_for_pages", "tmp_path_factory"], teardown=close)
