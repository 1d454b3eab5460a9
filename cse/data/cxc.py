"""Crisscrossed Captions: scored pairs of image captions (Parekh et al. 2021), a different domain from the STS tasks."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from cse.data.read import text_lines
from cse.data.shape import read_score
from cse.data.tasks.kinds import CaptionPairs
from cse.errors import CseError

COLUMNS = ("sentence1_id", "sentence2_id", "score", "sampling_method", "sentence1", "sentence2")
CXC_TEST = 44_045  # scored caption pairs
CXC_FILE = "cxc_sts_test.csv"
_SAME_IMAGE = "c2c_cocaption"
_PUBLISHED = {CXC_FILE: CXC_TEST}
_SCORES = (0.0, 5.0)


def read_cxc(path: Path) -> CaptionPairs:
    """Read the CSV of CxC-STS with its captions joined in; co-caption pairs identify captions of the same image."""
    if path.is_dir():
        path = path / CXC_FILE
    if not path.is_file():
        raise CseError(f"{path}: no such file; give the CSV of CxC-STS with the captions joined in")
    rows = csv.DictReader(f"{line}\n" for line in text_lines(path))
    lacks = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
    if lacks:
        raise CseError(f"{path}:1: lacks the column {lacks[0]}; expected {', '.join(COLUMNS)}")
    ids: dict[str, int] = {}
    seen: dict[frozenset[int], int] = {}
    first, second, score, ends, same = [], [], [], [], []
    for row in rows:
        number = rows.line_num
        if None in row.values() or not row["sentence1"].strip() or not row["sentence2"].strip():
            raise CseError(f"{path}:{number}: a column is missing or a caption is empty; join the captions again")
        score.append(read_score(row["score"], f"{path}:{number}", _SCORES, "copy the file again"))
        pair = tuple(ids.setdefault(row[name], len(ids)) for name in COLUMNS[:2])
        if seen.setdefault(frozenset(pair), number) != number:
            raise CseError(f"{path}:{number}: repeats the pair of line {seen[frozenset(pair)]}; keep one score")
        ends.append(pair)
        same.append(row["sampling_method"] == _SAME_IMAGE)
        first.append(row["sentence1"].strip())
        second.append(row["sentence2"].strip())
    if _PUBLISHED.get(path.name, len(score)) != len(score) or not score:
        raise CseError(f"{path}: {len(score):,} pairs, expected {CXC_TEST:,} as published; copy the file again")
    both = np.array(ends)
    edges = both[np.array(same)]
    graph = coo_matrix((np.ones(len(edges)), edges.T), shape=(len(ids), len(ids)))
    _, image_of = connected_components(graph, directed=False)
    return CaptionPairs(first, second, np.array(score), both[:, 0], image_of[both[:, 0]].astype(np.int64))
