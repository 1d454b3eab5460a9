"""Augmentations of training rows: what makes two copies of a sentence differ, beside dropout."""

from __future__ import annotations

import numpy as np
import torch


def repeat_words(ids: np.ndarray, *, largest_share: float, rng: np.random.Generator, special: np.ndarray) -> np.ndarray:
    """Repeat some word pieces in place (ESimCSE, Wu et al. 2022, section 3.1).

    The number of repetitions is uniform over ``0 .. max(2, int(largest_share * n))`` for ``n`` pieces, at most ``n``.

    Args:
        ids: token ids of one row ``(L,)``.
        largest_share: share of the pieces that may be repeated.
        rng: draws number and places.
        special: ids that are never repeated.

    Returns:
        ids ``(L + repetitions,)``.
    """
    places = np.flatnonzero(~np.isin(ids, special))
    most = min(max(2, int(largest_share * len(places))), len(places))
    return _repeat_at(ids, places, int(rng.integers(0, most + 1)), rng)


def repeat_words_as_released(
    ids: np.ndarray, *, largest_share: float, rng: np.random.Generator, special: np.ndarray
) -> np.ndarray:
    """Repeat some word pieces in place as ESimCSE's released code does.

    The number of repetitions is uniform over ``0 .. m - 1`` with ``m = min(10, int(largest_share * L))``, for a row of
    ``L`` ids with its first and last token; there are none where ``m`` is 0. Those two tokens are not repeated, any
    other is. Arguments and result are those of ``repeat_words``.
    """
    most = min(10, int(largest_share * len(ids)))
    return _repeat_at(ids, np.arange(1, len(ids) - 1), int(rng.integers(0, most)) if most > 0 else 0, rng)


REPEAT_RULES = {"paper": repeat_words, "released": repeat_words_as_released}


def _repeat_at(ids: np.ndarray, places: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    if count == 0:
        return ids
    times = np.ones(len(ids), dtype=np.int64)
    times[rng.choice(places, size=count, replace=False)] = 2
    return np.repeat(ids, times)


def mask_span(text: str, *, characters: int, mask_token: str, rng: np.random.Generator) -> str:
    """Replace a random span of characters by the mask token (Mirror-BERT, Liu et al. 2021).

    Args:
        text: a sentence; one that is not longer than the span stays as it is.
        characters: length of the span.
        mask_token: for instance ``[MASK]``; blanks set it off from the words around it.
        rng: draws the place.
    """
    if len(text) <= characters:
        return text
    start = int(rng.integers(0, len(text) - characters + 1))
    parts = (text[:start].rstrip(), mask_token, text[start + characters :].lstrip())
    return " ".join(part for part in parts if part)


def shuffled_positions(positions_BL: torch.Tensor, mask_BL: torch.Tensor, *, special: bool = False) -> torch.Tensor:
    """Put the position ids of each row in random order (ConSERT's token shuffling, Yan et al. 2021).

    The first and the last real token keep theirs, and so does padding. Random numbers are torch's.

    Args:
        positions_BL: position ids.
        mask_BL: 1 for real tokens.
        special: whether the first and the last real token change places too, as in the released code.
    """
    column_L = torch.arange(mask_BL.shape[1], device=mask_BL.device)
    edge = 0 if special else 1
    inner_BL = (column_L >= edge) & (column_L < mask_BL.sum(dim=1, keepdim=True) - edge)
    draw_BL = torch.rand(mask_BL.shape, device=mask_BL.device)
    # tokens that move are sorted by their draw between the first, which comes before, and all others, in order after
    key_BL = torch.where(inner_BL, draw_BL, torch.where(column_L == 0, -1.0, 1.0 + column_L))
    return positions_BL.gather(1, key_BL.argsort(dim=1, stable=True))


def cut_features(embedded_BLD: torch.Tensor, share: float) -> torch.Tensor:
    """Set a random share of the features of each row to zero at all tokens, without rescaling (ConSERT).

    Args:
        embedded_BLD: input of the first layer.
        share: share of the ``D`` features, rounded down.
    """
    rows, _, width = embedded_BLD.shape
    rank_BD = torch.rand((rows, width), device=embedded_BLD.device).argsort(dim=1).argsort(dim=1)
    kept_BD = (rank_BD >= int(share * width)).to(embedded_BLD.dtype)
    return embedded_BLD * kept_BD[:, None, :]
