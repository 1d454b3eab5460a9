"""Augmentations that make two copies of a sentence differ, on top of dropout."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from cse.model.backbone import Backbone
from cse.model.passes import Alteration
from cse.model.static_words import StaticWords
from cse.settings.train import AugmentSettings

# token ids of one row, its view -> token ids for this step
ChangeIds = Callable[[np.ndarray, int], np.ndarray]


def repeat_words(
    ids: np.ndarray, rule: str, *, largest_share: float, special: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Repeat some word pieces in place (ESimCSE, Wu et al. 2022, section 3.1); the number is uniform from 0 on.

    With rule ``released``, its released code's, any token but the first and the last may be repeated.
    """
    places, counted = np.arange(1, len(ids) - 1), len(ids)
    if rule == "paper":
        places = np.flatnonzero(~np.isin(ids, special))
        counted = len(places)
    count = int(rng.integers(0, min(most_repeated(rule, largest_share, counted), len(places)) + 1))
    if count == 0:
        return ids
    times = np.ones(len(ids), dtype=np.int64)
    times[rng.choice(places, size=count, replace=False)] = 2
    return np.repeat(ids, times)


def most_repeated(rule: str, largest_share: float, count: int) -> int:
    """Return how many of so many pieces a rule repeats at most; that of released code counts all ids of the row."""
    most = int(largest_share * count)
    return max(2, most) if rule == "paper" else max(min(10, most) - 1, 0)


def change_ids(
    augment: AugmentSettings, backbone: Backbone | StaticWords, rng: np.random.Generator
) -> ChangeIds | None:
    """Return the function that changes the token ids of one step, or None if they do not change."""
    if augment.repeat_words == 0.0 or not isinstance(backbone, Backbone):
        return None
    rule, share = augment.repeat_rule, augment.repeat_words
    special = np.array([*backbone.special_ids.values(), backbone.pad_id])

    def change(ids: np.ndarray, view: int) -> np.ndarray:
        return repeat_words(ids, rule, largest_share=share, special=special, rng=rng) if view == 1 else ids

    return change


def mask_span(text: str, *, characters: int, mask_token: str, rng: np.random.Generator) -> str:
    """Replace a random span of characters of a longer text with the mask token (Mirror-BERT, Liu et al. 2021)."""
    if len(text) <= characters:
        return text
    start = int(rng.integers(0, len(text) - characters + 1))
    parts = (text[:start].rstrip(), mask_token, text[start + characters :].lstrip())
    return " ".join(part for part in parts if part)


def second_text(how: AugmentSettings, backbone: Backbone | StaticWords, seed: int) -> Callable[[str, int], str] | None:
    """Return the function of text and row number that changes the second copy's text, or None."""
    if how.mask_span == 0 or not isinstance(backbone, Backbone):
        return None
    token = str(backbone.tokenizer.id_to_token(backbone.special_ids["mask"]))
    return lambda text, row: mask_span(
        text, characters=how.mask_span, mask_token=token, rng=np.random.default_rng([seed, row])
    )


def shuffled_positions(positions_BL: torch.Tensor, mask_BL: torch.Tensor, *, special: bool = False) -> torch.Tensor:
    """Shuffle the position ids of each row (ConSERT's token shuffling, Yan et al. 2021).

    Padding keeps its positions and, unless ``special`` (the released code), so do the first and last real token. Uses
    torch's random numbers.
    """
    column_L = torch.arange(mask_BL.shape[1], device=mask_BL.device)
    edge = 0 if special else 1
    inner_BL = (column_L >= edge) & (column_L < mask_BL.sum(dim=1, keepdim=True) - edge)
    draw_BL = torch.rand(mask_BL.shape, device=mask_BL.device)
    # sort keys: the first token, then shuffled tokens by their draw, then all others in their original order
    key_BL = torch.where(inner_BL, draw_BL, torch.where(column_L == 0, -1.0, 1.0 + column_L))
    return positions_BL.gather(1, key_BL.argsort(dim=1, stable=True))


def cut_features(embedded_BLD: torch.Tensor, share: float) -> torch.Tensor:
    """Zero a random share of each row's ``D`` features, rounded down, at all tokens, without rescaling (ConSERT)."""
    rows, _, width = embedded_BLD.shape
    rank_BD = torch.rand((rows, width), device=embedded_BLD.device).argsort(dim=1).argsort(dim=1)
    kept_BD = (rank_BD >= int(share * width)).to(embedded_BLD.dtype)
    return embedded_BLD * kept_BD[:, None, :]


def alteration(augment: AugmentSettings, view_B: torch.Tensor) -> Alteration | None:
    """Return ConSERT's changes to rows of these views: shuffled positions of first copies, cut features of second ones.

    None without either.
    """
    shuffle, cut = augment.shuffle_tokens, augment.cut_features
    if shuffle == "none" and cut == 0.0:
        return None

    def positions(positions_BL: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
        if shuffle == "none":
            return positions_BL
        shuffled_BL = shuffled_positions(positions_BL, mask_BL, special=shuffle == "released")
        return torch.where(view_B[:, None] == 0, shuffled_BL, positions_BL)

    def embedded(embedded_BLD: torch.Tensor) -> torch.Tensor:
        if cut == 0.0:
            return embedded_BLD
        return torch.where(view_B[:, None, None] == 1, cut_features(embedded_BLD, cut), embedded_BLD)

    return Alteration(embedded, positions)
