"""Embed a corpus: plan, resume where a killed run stopped, share out the rest, sum up."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cse.data.read import TABLES
from cse.errors import CseError, Interrupted
from cse.process import handling
from cse.ray_session import ADDRESS
from cse.runtime.bundle import MODEL
from cse.runtime.providers import no_cuda_reason, open_graph
from cse.scale.corpus.cluster import check_workers, running_ray
from cse.scale.corpus.model import find_model
from cse.scale.corpus.output import MANIFEST, finish, only_writer, open_plan, open_vectors
from cse.scale.corpus.pieces import PieceRows, read_pieces
from cse.scale.corpus.plan import Choices, Piece
from cse.scale.corpus.pool import make_shards
from cse.scale.corpus.progress import CorpusProgress, own_stderr
from cse.scale.corpus.shard import STORED
from cse.scale.corpus.sources import Corpus, CorpusFile, find_corpus
from cse.scale.corpus.worker import Made, Worker, WorkerConfig
from cse.storage import Folder


@dataclass(frozen=True)
class Embedded:
    """Summary of a run.

    Attributes:
        truncated: rows of this run longer than their limit; repeated texts in a shard count once.
        limits: the model's shortest and longest limit in tokens, which differ only between domains.
    """

    rows: int
    found: int
    truncated: int
    left_out: list[Any]
    shards: int
    dimension: int
    limits: tuple[int, int]

    @property
    def cut(self) -> str:
        """Say how many rows were truncated, and what to do."""
        shortest, longest = self.limits
        limit = f"{shortest} tokens, the model's limit"
        if shortest < longest:
            limit = f"{shortest} to {longest} tokens, the limits of their domains"
        rows = "1 row was" if self.truncated == 1 else f"{self.truncated:,} rows were"
        return f"{rows} truncated to {limit}; split long texts into a row per passage to find what is beyond"


def embed_corpus(
    corpus: str, out: str, model: str, choices: Choices, *, workers: int | None = None, again: bool = False
) -> Embedded:
    """Embed a corpus into a folder of shards; keep the shards of a killed run.

    Args:
        model: folder of a bundle, or a bank's domain (``BANK:NAME``); with a domain column, a bank.
        choices: options that change a shard; ``provider`` may be ``auto``.
        workers: Ray actors; 0: this process alone, without Ray; None: one per core or GPU, or 0 where one shard is
            missing and no cluster is named.
        again: delete the output of earlier runs first.

    Raises:
        Interrupted: SIGTERM or SIGINT; the same call resumes.
    """
    chosen = find_model(model, choices.columns.domain)
    folder = Folder(out)
    files = find_corpus(corpus, skip=folder)
    _check_columns(files, choices)
    _check_places(files, folder, workers)
    check_workers(workers)
    task_text = chosen.task_text(choices.role)
    choices = replace(choices, provider=_provider(choices.provider, chosen.folder), task_text=task_text)
    with only_writer(folder), own_stderr() as stream:
        plan, names = open_plan(folder, files, choices, chosen, again=again)
        missing = [piece for piece in plan.pieces() if piece.shard not in names]
        if workers is None and len(missing) == 1 and ADDRESS not in os.environ:
            workers = 0  # to start Ray takes longer
        found = plan.rows - sum(piece.rows for piece in missing)
        progress = CorpusProgress(plan.rows, found, stream)
        truncated, blank = 0, list[Any]()
        if missing:
            config = WorkerConfig(
                os.path.abspath(chosen.folder),  # noqa: PTH100 - actors may have another working folder
                chosen.domain,
                chosen.identities(),
                folder.path if folder.local else folder.url,
                choices,
                plan.id_type,
                plan.kept,
            )
            todo = read_pieces(missing, files.files, files.format, choices.columns, plan.id_type)
            truncated, blank = _make(config, todo, len(missing), files.files, workers, progress)
        if missing or MANIFEST not in names:
            finish(folder, plan, chosen)
        folder.close()
    rows = open_vectors(out).rows
    return Embedded(rows, found, truncated, blank, len(plan.spans), chosen.dimension, chosen.limits())


def _check_columns(files: Corpus, choices: Choices) -> None:
    columns = choices.columns
    for name, option in columns.options:
        if files.format == "txt" and option != "--text-column":
            raise CseError(f"{option} {name}: {files.files[0].shown} has no columns; use a {', '.join(TABLES)} file")
    for name in columns.kept:
        if name in STORED or columns.kept.count(name) > 1:
            raise CseError(f"--keep-column {name}: the index has its own column of that name; rename it in the corpus")


def _check_places(files: Corpus, folder: Folder, workers: int | None) -> None:
    for url in (files.files[0].url, folder.url):
        if url.startswith("memory:") and workers != 0:
            raise CseError(f"{url}: memory:// exists in this process alone; use --workers 0")


def _provider(asked: str, bundle: str) -> str:
    """Resolve ``auto`` once: vectors from a GPU and a CPU differ in the last digits."""
    if asked != "auto":
        return asked
    return "cpu" if no_cuda_reason() else open_graph(Path(bundle) / MODEL, "auto", 1).provider


def _make(
    config: WorkerConfig,
    todo: Iterator[tuple[Piece, PieceRows]],
    pieces: int,
    sources: list[CorpusFile],
    workers: int | None,
    progress: CorpusProgress,
) -> tuple[int, list[Any]]:
    """Make the missing shards, here or with Ray; return how many rows were truncated, and ids of those left out."""

    def stop(number: int) -> None:
        raise Interrupted(number, f"after {progress.done:,} of {progress.total:,} rows")

    truncated, blank = 0, list[Any]()
    with contextlib.ExitStack() as stack:
        if workers == 0:
            done: Iterator[Made] = Worker(config).make_shards(todo)
        else:
            ray, crew = stack.enter_context(running_ray(workers, config.choices.provider))
            done = make_shards(ray, config, todo, pieces, sources, crew, progress.say)
        stack.enter_context(handling(stop, signal.SIGTERM, signal.SIGINT))  # after Ray, which sets handlers too
        stack.enter_context(progress)
        for made in done:
            progress.add(made.rows)
            truncated += made.truncated
            blank += made.left_out
    return truncated, blank
