"""Pairs of plain sentences and hard negatives of pairs, mined with the bare backbone, and the rows that come of it.

A hard negative is the nearest text to an anchor that is not a false negative: one nearer than a share of the positive's
cosine (TopK-PercPos of NV-Retriever, Moreira et al. 2024, arXiv 2407.15831). Texts of any group that the anchor's text
is in, and texts that stand in a row with it, are never candidates; nor is what says the same but for case and
punctuation.

Two sentences among each other's nearest are a pair. In text of one field such pairs mostly mean the same: of the
training questions of banking77, 93 % of the pairs among each other's five nearest (MiniLM) ask for the same intent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cse.artifact import Kind, read_object, sha256
from cse.data.clean import text_key
from cse.data.store import TRAIN_FILE, PreparedData
from cse.errors import CseError
from cse.runtime.encode import best_places
from cse.settings import Settings
from cse.settings.data import MineSettings
from cse.training import Folders

if TYPE_CHECKING:
    from cse.model.backbone_files import BackboneFiles

NONE = -1
CELLS = 1 << 24  # cosines held at once


@dataclass(frozen=True)
class PairNumbers:
    """Pairs as numbers of distinct texts.

    Attributes:
        texts: distinct texts; the candidates (positives) first, in order of appearance.
        barred_R: for each row the candidates that are no negatives of its anchor, whatever their cosine.
    """

    texts: list[str]
    candidates: int
    anchor_R: np.ndarray
    positive_R: np.ndarray
    barred_R: Sequence[np.ndarray]


def read_pairs(anchors: Sequence[str], positives: Sequence[str], groups: Sequence[str] | None) -> PairNumbers:
    """Number the texts of pairs and find what may be no negative of each: its groups, its partners, itself.

    Texts that differ in case and punctuation only are one text there.
    """
    numbers = {text: number for number, text in enumerate(dict.fromkeys([*positives, *anchors]))}
    candidates = len(set(positives))
    anchor_R, positive_R = (np.array([numbers[text] for text in texts], np.int64) for texts in (anchors, positives))
    keys: dict[bytes, int] = {}
    key_T = [keys.setdefault(text_key(text), len(keys)) for text in numbers]
    alike: dict[int, list[int]] = defaultdict(list)  # candidates by key
    for number, key in enumerate(key_T[:candidates]):
        alike[key].append(number)
    partners: dict[int, set[int]] = defaultdict(set)  # keys by key
    groups_of: dict[int, set[str]] = defaultdict(set)
    members: dict[str, set[int]] = defaultdict(set)
    for row, (anchor, positive) in enumerate(zip(anchor_R.tolist(), positive_R.tolist(), strict=True)):
        one, other = key_T[anchor], key_T[positive]
        partners[one] |= {one, other}
        partners[other].add(one)
        if groups is not None:
            members[groups[row]] |= {one, other}
            groups_of[one].add(groups[row])
            groups_of[other].add(groups[row])

    def texts_of(found: Iterable[int]) -> np.ndarray:
        return np.array(sorted(text for key in found for text in alike.get(key, ())), np.int64)

    of_group = {name: texts_of(found) for name, found in members.items()}
    of_anchor = {
        one: np.concatenate([texts_of(partners[one]), *(of_group[name] for name in sorted(groups_of[one]))])
        for one in {key_T[anchor] for anchor in set(anchor_R.tolist())}
    }
    barred_R = [of_anchor[key_T[anchor]] for anchor in anchor_R.tolist()]
    return PairNumbers(list(numbers), candidates, anchor_R, positive_R, barred_R)


def mine(pairs: PairNumbers, anchors_TD: np.ndarray, texts_TD: np.ndarray, margin: float) -> np.ndarray:
    """Return the hard negative of each row, a number of a text, or ``NONE`` where none is left.

    Args:
        anchors_TD: vector of each text as an anchor, of unit length; rows of texts that are none are not read.
    """
    candidates_CD = np.ascontiguousarray(texts_TD[: pairs.candidates])
    chosen_R = np.full(len(pairs.anchor_R), NONE)
    for row, cosines_C in _searched(anchors_TD, pairs.anchor_R, candidates_CD):
        positive = float(anchors_TD[pairs.anchor_R[row]] @ texts_TD[pairs.positive_R[row]])
        cosines_C[pairs.barred_R[row]] = -np.inf
        cosines_C[cosines_C > margin * positive] = -np.inf
        best = int(cosines_C.argmax())
        if cosines_C[best] > -np.inf:
            chosen_R[row] = best
    return chosen_R


def triplets(pairs: PairNumbers, chosen_R: np.ndarray, groups: Sequence[str] | None) -> Iterator[tuple[str, ...]]:
    """Yield anchor, positive, hard negative and the group, if there are groups, of each row that has a negative."""
    for row in np.flatnonzero(chosen_R != NONE).tolist():
        texts = [pairs.texts[numbers[row]] for numbers in (pairs.anchor_R, pairs.positive_R, chosen_R)]
        yield (*texts, *(() if groups is None else (groups[row],)))


def mean_cosine(one_RD: np.ndarray, other_RD: np.ndarray) -> float:
    """Return the mean cosine of vectors of unit length, row by row, to four digits."""
    return round(float((one_RD * other_RD).sum(axis=1).mean()), 4)


def _searched(
    vectors_TD: np.ndarray, rows_R: np.ndarray, candidates_CD: np.ndarray
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield every row's place and its cosines with all candidates; ``rows_R``: numbers of the vectors that search."""
    size = max(CELLS // len(candidates_CD), 1)
    for start in range(0, len(rows_R), size):
        yield from enumerate(vectors_TD[rows_R[start : start + size]] @ candidates_CD.T, start=start)


def mutual_neighbours(vectors_TD: np.ndarray, nearest: int) -> np.ndarray:
    """Return the pairs of texts among each other's ``nearest``, int64 ``(P, 2)``, the earlier first, in order."""
    nearest = min(nearest, len(vectors_TD) - 1)
    if nearest < 1:
        return np.empty((0, 2), np.int64)
    vectors_TD = np.ascontiguousarray(vectors_TD)
    found_TK = np.empty((len(vectors_TD), nearest), np.int64)
    for row, cosines_T in _searched(vectors_TD, np.arange(len(vectors_TD)), vectors_TD):
        cosines_T[row] = -np.inf
        found_TK[row] = best_places(cosines_T, nearest)
    one = np.repeat(np.arange(len(vectors_TD)), found_TK.shape[1])
    pairs = np.stack([one, found_TK.ravel()], axis=1)
    distinct, times = np.unique(np.sort(pairs, axis=1), axis=0, return_counts=True)
    return distinct[times == 2]


def mining_facts(settings: Settings, prepared: Path) -> dict[str, Any]:
    """Return everything that decides which rows are mined but the backbone's content, as JSON values."""
    return {
        "mine": settings.mine.model_dump(mode="json"),
        "backbone": settings.backbone.model_dump(mode="json"),
        "pooler": settings.pooler.kind,
        "roles": settings.train.roles,
        "source": sha256(prepared / TRAIN_FILE),
    }


_AGAIN = "run `cse prepare` (or `dvc repro`) again"
CONTENT = "content"  # hash of the backbone's files: a folder of the same name may hold another one


def rows_to_train(settings: Settings, folders: Folders) -> PreparedData:
    """Open the prepared data, with the mined rows for training if mining is on."""
    prepared, mined = folders.prepared, folders.mined
    if not settings.mine.wanted:
        return PreparedData(prepared)
    made = _read(mined)
    data = PreparedData(prepared, rows=mined / TRAIN_FILE)
    for name, value in mining_facts(settings, prepared).items():
        if made.get(name) != value:
            what = "from other rows" if name == "source" else f"with other settings ({name})"
            raise CseError(f"{mined}: mined {what} than this training's; {_AGAIN}")
    return data


def check_backbone(mined: Path, mine: MineSettings, files: BackboneFiles) -> None:
    """Refuse rows that were mined with another content of the backbone, once it is open."""
    if mine.wanted and _read(mined).get(CONTENT) != files.content():
        raise CseError(f"{mined}: {files.name} holds another model than the one that mined the rows; {_AGAIN}")


def _read(mined: Path) -> dict[str, Any]:
    path = mined / Kind.MINED_ROWS.manifest
    made = read_object(path, _AGAIN) if path.is_file() else {}
    if "mine" not in made:
        raise CseError(f"{mined}: nothing mined, but the settings ask for it (group mine); {_AGAIN}")
    return made
