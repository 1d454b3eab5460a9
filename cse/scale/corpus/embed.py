"""Embed a corpus: plan, go on where a killed run stopped, share the rest out, say what came of it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from cse.errors import CseError, Interrupted, nearest
from cse.runtime.bundle import Bundle, read_manifest
from cse.runtime.providers import no_cuda_reason, open_session, usable_cpus
from cse.scale.corpus.plan import PLAN, Choices, Piece, Plan, difference, make_plan, plan_facts
from cse.scale.corpus.progress import Progress
from cse.scale.corpus.sources import Corpus, Source, find_corpus
from cse.scale.corpus.storage import DRAFTS, Folder, is_local
from cse.scale.corpus.worker import Job, Worker

MANIFEST = "manifest.json"
INDEX, INDEX_FACTS = "index.faiss", "index.json"
_SHARD = re.compile(r"part-\d{6,}\.parquet")


@dataclass(frozen=True)
class Embedded:
    """What a run came to: rows in the folder, and how many of them it found there."""

    rows: int
    found: int
    shards: int
    dimension: int


def embed_corpus(
    corpus: str, out: str, bundle: str, choices: Choices, *, workers: int | None, again: bool = False
) -> Embedded:
    """Make a folder of shards from a corpus.

    Args:
        corpus: file, folder or glob; path or URL.
        out: folder to write; path or URL. Shards that are in it are kept.
        bundle: folder of the model.
        choices: options that change a shard; ``provider`` may be ``auto``.
        workers: actors of Ray; 0: none, this process does it all. None: one for each core, or for each GPU.
        again: remove what an earlier run made of something else.

    Raises:
        CseError: anything that the user can mend, see ``make_plan`` and ``make_shards``.
        Interrupted: SIGTERM or SIGINT; the same call goes on from there.
    """
    manifest = open_manifest(bundle)
    files = find_corpus(corpus)
    folder = Folder(out)
    _check_places(files, folder, workers)
    choices = _settled(choices, bundle, manifest)
    with _only_writer(folder):
        plan, names = _plan(folder, files, choices, model_facts(manifest), again=again)
        missing = [piece for piece in plan.pieces() if piece.shard not in names]
        found = plan.rows - sum(piece.rows for piece in missing)
        if missing:
            job = Job(os.path.abspath(bundle), _anywhere(folder), files.format, choices, plan.id_type)  # noqa: PTH100
            _make(job, plan, missing, files.files, workers, found)
        done = Embedded(plan.rows, found, len(plan.cuts), manifest.dimension)
        if MANIFEST not in names or missing:
            _finish(folder, plan, manifest, bundle)
        folder.close()
    return done


def open_manifest(bundle: str) -> Bundle:
    """Read a bundle's manifest.

    Raises:
        CseError: no such folder, with the nearest name, or no bundle in it.
    """
    folder = Path(bundle)
    if not folder.exists():
        hint = nearest(bundle, map(str, folder.parent.glob("*/"))) or "; `cse export` writes one"
        raise CseError(f"{bundle}: no such folder{hint} (--model)")
    return read_manifest(folder)


def model_facts(manifest: Bundle) -> dict[str, Any]:
    """Return what tells one model from another."""
    files = {name: entry["sha256"] for name, entry in sorted(manifest.files.items())}
    return {"files": files, "max_length": manifest.max_length, "pad_id": manifest.pad_id}


def _check_places(files: Corpus, folder: Folder, workers: int | None) -> None:
    for url in (files.files[0].url, folder.url):
        if url.startswith("memory:") and workers != 0:
            raise CseError(f"{url}: memory:// is known to this process alone; give --workers 0")
    out = folder.path.rstrip("/") + "/"
    inside = next((file for file in files.files if file.url.removeprefix("file://").startswith(out)), None)
    if inside is not None and folder.local:
        raise CseError(f"{inside.shown}: the corpus lies in the folder to write; give another --out")


def _settled(choices: Choices, bundle: str, manifest: Bundle) -> Choices:
    """Decide what was left open: the provider, so that all workers have the same one."""
    provider = choices.provider
    if provider == "auto":
        provider = "cpu"
        if not no_cuda_reason():
            provider = open_session(Path(bundle) / "model.onnx", "auto", 1).provider
    return Choices(**{**vars(choices), "provider": provider})


def _anywhere(folder: Folder) -> str:
    """Return the folder's name for processes that may have another working folder."""
    return folder.path if folder.local else folder.url


@contextmanager
def _only_writer(folder: Folder) -> Iterator[None]:
    """Keep a second run from writing the same folder; on an object store nothing can.

    Raises:
        CseError: another run is at it.
    """
    if not folder.local:
        yield
        return
    from filelock import FileLock, Timeout

    place = Path(folder.path)
    if place.is_file():
        raise CseError(f"{folder.url}: a file; name a folder (--out)")
    place.mkdir(parents=True, exist_ok=True)
    lock = FileLock(place / ".lock")
    try:
        with lock.acquire(timeout=0):
            yield
    except Timeout:
        raise CseError(f"{folder.url}: another `cse embed` writes here; wait for it, or give another --out") from None


def _plan(
    folder: Folder, files: Corpus, choices: Choices, model: dict[str, Any], *, again: bool
) -> tuple[Plan, set[str]]:
    """Return the plan of the folder, made now where there is none, and the names of what is there already."""
    names = folder.names()
    facts = json.loads(json.dumps(plan_facts(files, choices, model)))
    if again:
        _clear(folder, names)
        names = set()
    if PLAN in names:
        plan = Plan.from_json(folder.read(PLAN), folder / PLAN)
        if changed := difference(plan.facts, facts):
            raise CseError(
                f"{folder.url}: made from something else: {changed}; give another --out, or --again to start over"
            )
        folder.create()
        return plan, names
    if any(_SHARD.fullmatch(name) for name in names):
        raise CseError(f"{folder.url}: shards without {PLAN}; give another --out, or --again to start over")
    plan = make_plan(files, choices, facts)
    folder.create()
    folder.write(PLAN, plan.to_json())
    return plan, names


def _clear(folder: Folder, names: set[str]) -> None:
    """Remove what an earlier run made; the plan first, so that a kill in between is seen."""
    ours = [name for name in (MANIFEST, PLAN, INDEX_FACTS, INDEX) if name in names]
    for name in [*ours, *sorted(name for name in names if _SHARD.fullmatch(name))]:
        folder.remove(name)


def _make(
    job: Job, plan: Plan, missing: list[Piece], sources: list[Source], workers: int | None, found: int
) -> None:
    """Make the missing shards."""
    todo = ((piece, sources[piece.file]) for piece in missing)
    with contextlib.ExitStack() as stack:
        if workers == 0:
            worker = Worker(job)
            done = (worker.make_shard(piece, source) for piece, source in todo)
            stop = stack.enter_context(_stoppable())
        else:
            from cse.scale.corpus.pool import make_shards, running_ray, share_out

            count, gpus = share_out(workers, job.choices.provider)
            stack.enter_context(running_ray(count, gpus))
            done = make_shards(job, todo, count, gpus)
            stop = stack.enter_context(_stoppable())  # after Ray, which sets handlers of its own
        progress = Progress(plan.rows, found)
        stack.callback(progress.close)
        stop.progress = progress
        for rows in done:
            progress.add(rows)


class _Stop:
    progress: Progress | None = None

    def __call__(self, number: int, _: Any) -> None:
        done = "" if self.progress is None else f" after {self.progress.done:,} of {self.progress.total:,} rows"
        raise Interrupted(number, done.strip())


@contextmanager
def _stoppable() -> Iterator[_Stop]:
    """Turn SIGTERM and SIGINT into ``Interrupted``; only the main thread may."""
    stop = _Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    old = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _finish(folder: Folder, plan: Plan, manifest: Bundle, bundle: str) -> None:
    """Check that every shard is there, and say what the folder holds."""
    there = folder.names()
    lost = [piece.shard for piece in plan.pieces() if piece.shard not in there]
    if lost:
        raise CseError(f"{folder / lost[0]}: gone since it was written; run the same command again")
    facts = plan.facts
    tree = {
        "format": 1,
        "rows": plan.rows,
        "shards": len(plan.cuts),
        "dimension": manifest.dimension,
        "normalize": facts["normalize"],
        "id": {"column": facts.get("id_column"), "type": plan.id_type},
        "text": facts["keep_text"],
        "model": {"path": os.path.abspath(bundle), **facts["model"]},  # noqa: PTH100
        "plan": hashlib.sha256(plan.to_json()).hexdigest(),
    }
    folder.write(MANIFEST, (json.dumps(tree, indent=2) + "\n").encode())


__all__ = ["DRAFTS", "INDEX", "INDEX_FACTS", "MANIFEST", "Embedded", "click", "embed_corpus", "is_local", "usable_cpus"]
