"""The record of an evaluation: one folder per model with scores, settings, environment and the data for figures.

``record.json`` holds the name, the model, the scores with their settings, the environment, and hashes: of the items
that were measured, of the model, of every other file (``cse.artifact``). Optional files:
``density.csv`` (curves of the cosines of one task's pairs), ``retrieval.csv`` (each query with its nearest sentences),
``items.npz`` (what the scores of the user's own tasks and of STS are made of, see ``write_items``).
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cse.artifact import Kind, check_files, open_manifest, write_manifest
from cse.data.store import rows_in_words
from cse.errors import CseError
from cse.evaluation.space import DENSITY_COLUMNS, density_rows
from cse.evaluation.suite import SuiteResults
from cse.files import read_csv, rounded, write_csv

RECORD_FILE = Kind.RECORD.manifest
DENSITY_FILE, RETRIEVAL_FILE = "density.csv", "retrieval.csv"
ITEMS_FILE = "items.npz"
FORMAT = 5
_AGAIN = "evaluate the model again with --out"


@dataclass(frozen=True)
class Record:
    """One evaluated model.

    Attributes:
        model: backbone, prompt, training settings and training rows, as far as known.
        scores: see ``SuiteResults.to_dict``.
        content: hash of the items of each task, see ``content_of_suite``.
        identity: of the checkpoint that was measured, see ``identity_of``; empty for other models.
        drawn_task: whose cosines are drawn.
    """

    folder: Path
    name: str
    model: dict[str, Any]
    scores: dict[str, Any]
    environment: dict[str, Any]
    content: dict[str, str]
    identity: str
    drawn_task: str

    def table(self, file: str) -> list[dict[str, str]]:
        """Return the rows of a CSV file of the record; none if the file is missing."""
        return read_csv(self.folder / file)


def write_record(
    folder: Path, name: str, results: SuiteResults, *, model: dict[str, Any], environment: dict[str, Any],
    identity: str = "",
) -> None:  # fmt: skip
    """Write a record to an existing, empty folder; round scores to four decimals."""
    if results.densities:
        write_csv(folder / DENSITY_FILE, DENSITY_COLUMNS, density_rows(results.densities))
    if results.retrieval is not None:
        write_csv(
            folder / RETRIEVAL_FILE,
            ("query", "partner", "rank", "place", "candidate", "cosine", "correct"),
            (
                (one.query, one.partner, one.rank, place, text, f"{cosine:.4f}", int(text == one.partner))
                for one in results.retrieval.examples
                for place, (text, cosine) in enumerate(one.nearest, start=1)
            ),
        )
    kinds = {"tasks": results.tasks, "sts": {} if results.sts is None else results.sts.tasks}
    items = {f"{kind}/{task}": score.items for kind, tasks in kinds.items() for task, score in tasks.items()}
    if items:
        write_items(folder / ITEMS_FILE, items)
    tree = {"format": FORMAT, "name": name, "model": model, "scores": results.to_dict(), "environment": environment}
    tree |= {"content": results.content, "identity": identity, "drawn_task": results.drawn_task}
    write_manifest(folder, Kind.RECORD, rounded(tree))


def read_record(folder: Path) -> Record:
    """Read a record."""
    try:
        tree = open_manifest(folder, Kind.RECORD, version=FORMAT, again=_AGAIN)
    except FileNotFoundError:
        raise CseError(f"{folder}: no {RECORD_FILE} in it; create one with `cse evaluate MODEL --out FOLDER`") from None
    check_files(folder, tree["files"], RECORD_FILE, _AGAIN)
    known = ("name", "model", "scores", "environment", "content", "identity")
    return Record(folder, **{name: tree[name] for name in known}, drawn_task=tree.get("drawn_task", ""))


def trained_on(model: Mapping[str, Any]) -> str | None:
    """Return the rows that a model was trained on, such as ``sample, 3,000 triplets``.

    None if nothing was trained or fitted, or if it was not recorded.
    """
    if model.get("trained_on"):
        return str(model["trained_on"])  # from a bundle
    facts = model.get("facts") or {}
    settings = facts.get("settings", {})
    fitted = settings.get("post", {}).get("kind", "none") != "none"
    if settings.get("train", {}).get("parameters") == "none" and not fitted:
        return None
    return None if facts.get("data") is None else rows_in_words(facts["data"])


def write_items(path: Path, tasks: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Write the items of tasks such as ``tasks/NAME`` and ``sts/NAME``, one array per measure; see ``Score.items``."""
    items: dict[str, Any] = {
        f"{name}/{measure}": np.asarray(each, np.float64)
        for name, measures in tasks.items()
        for measure, each in measures.items()
    }
    np.savez_compressed(path, **items)


def read_items(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """Return the items by task and measure, float64 ``(n,)``; none where there is no such file."""
    if not path.is_file():
        return {}
    found: dict[str, dict[str, np.ndarray]] = {}
    try:
        with np.load(path, allow_pickle=False) as archive:
            for key in archive.files:
                task, _, measure = key.rpartition("/")
                found.setdefault(task, {})[measure] = archive[key]
    except (ValueError, OSError, zipfile.BadZipFile):
        raise CseError(f"{path}: truncated or changed; evaluate the model again with --out") from None
    return found
