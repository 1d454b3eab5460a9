"""Read a user's own tasks from a file or a folder; see ``cse.data.tasks.layout`` for what is recognised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cse.data.checks import listed
from cse.data.readers import check_exists, contents, find_data_file
from cse.data.scored_file import read_scored_file
from cse.data.tables import open_table
from cse.data.tasks.beir import read_beir
from cse.data.tasks.files import holds_scores, read_binary, read_halves, read_splits, read_triplets
from cse.data.tasks.kinds import BINARY, LABELLED, SCORED, TRIPLETS, ScoredPairs, Task
from cse.data.tasks.layout import is_beir, kind_of_columns, splits_of
from cse.errors import CseError

SCORES = (0.0, 5.0)
_SETTING = "the path"
_READERS: dict[str, Callable[[Path, str, str | None], Task]] = {
    BINARY: read_binary,
    TRIPLETS: read_triplets,
    LABELLED: read_halves,
}


def read_task(
    path: Path,
    *,
    encoding: str | None = None,
    score_range: tuple[float, float] = SCORES,
    labelled: Sequence[str] | None = None,
    setting: str = _SETTING,
) -> Task:
    """Read one task; its layout and its columns tell the kind.

    Args:
        path: a csv, tsv, jsonl or parquet file, a folder with one such file, or the folder of a task.
        encoding: encoding of text files; None: UTF-8.
        score_range: lowest and highest gold score of scored pairs.
        labelled: columns of text and label of labelled texts; None: the usual ones.
        setting: what names the path, for errors.

    Returns:
        The task; its name is that of the file without its suffix, or of the folder.

    Raises:
        CseError: no such path, columns of no kind or of several, or anything wrong with the rows.
    """
    check_exists(path, setting)
    name = path.resolve().name if path.is_dir() else path.stem
    if path.is_dir():
        if is_beir(path):
            return read_beir(path, name)
        splits = splits_of(path)
        if splits is not None:
            return read_splits(splits["train"], splits["test"], name, encoding, labelled)
        path = find_data_file(path, setting)
    if labelled and set(labelled) <= set(open_table(path, encoding).columns):
        return read_halves(path, name, encoding, labelled)
    kind = _kind_of_file(path, encoding)
    if kind == SCORED:
        return read_scored(path, name, encoding, score_range)
    return _READERS[kind](path, name, encoding)


def read_scored(path: Path, name: str, encoding: str | None, score_range: tuple[float, float]) -> ScoredPairs:
    """Read scored pairs of which a rank correlation can be had.

    Raises:
        CseError: see ``read_scored_file``; fewer than two pairs, or equal scores.
    """
    pairs = read_scored_file(path, encoding or "utf-8", score_range, name)
    if len(set(pairs.score.tolist())) < 2:
        count = f"{len(pairs)} pair{'s' if len(pairs) > 1 else ''}"
        raise CseError(
            f"{path}: {count} with the score {pairs.score[0]:g}; Spearman needs at least 2 pairs and two different "
            "scores: add pairs or remove the file"
        )
    return pairs


def read_tasks(
    path: Path,
    *,
    encoding: str | None = None,
    score_range: tuple[float, float] = SCORES,
    labelled: Sequence[str] | None = None,
    setting: str = _SETTING,
) -> list[Task]:
    """Read a task, or each task in a folder of several; an empty folder gives none.

    Raises:
        CseError: as ``read_task``, or two tasks of one name.
    """
    check_exists(path, setting)
    several = path.is_dir() and not is_beir(path) and splits_of(path) is None
    paths = [path / name for name in contents(path)] if several else [path]
    tasks = [
        read_task(each, encoding=encoding, score_range=score_range, labelled=labelled, setting=setting)
        for each in paths
    ]
    check_names(tasks)
    return tasks


def check_names(tasks: Sequence[Task]) -> None:
    """Refuse two tasks of one name.

    Raises:
        CseError: there are two.
    """
    names = [task.name for task in tasks]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise CseError(f"tasks: two are called {listed(twice)}; rename a file or folder")


def _kind_of_file(path: Path, encoding: str | None) -> str:
    kind = kind_of_columns(path, open_table(path, encoding).columns)
    # scored pairs may call their scores labels
    return SCORED if kind == BINARY and holds_scores(path, encoding) else kind
