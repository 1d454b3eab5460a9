"""One step's rows and what the encoder made of them: what every term of the loss may look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cse.model.encoder import Alteration, Constants, SentenceEncoder, Tokens
from cse.training.augment import cut_features, repeat_words, shuffled_positions
from cse.training.tokens import ChangeIds, TokenTable, pad_in_groups


@dataclass(frozen=True)
class Augmentation:
    """How the copies of a sentence are made to differ, beside dropout.

    Attributes:
        repeat_share: largest share of word pieces repeated in the second copy.
        special: ids that are never repeated.
        shuffle: whether the first copy's positions are shuffled.
        cut_share: share of features set to 0 in the second copy.
    """

    repeat_share: float = 0.0
    special: Sequence[int] = ()
    shuffle: bool = False
    cut_share: float = 0.0

    def change_ids(self, rng: np.random.Generator) -> ChangeIds | None:
        """Return the change of token ids of one step, or None where there is none."""
        if self.repeat_share == 0.0:
            return None
        special = np.asarray(self.special)
        return lambda ids, view: (
            repeat_words(ids, largest_share=self.repeat_share, rng=rng, special=special) if view == 1 else ids
        )

    def alteration(self, view_B: torch.Tensor) -> Alteration | None:
        """Return the change between word vectors and the first layer for rows of these views, or None."""
        return _Alteration(self, view_B) if self.shuffle or self.cut_share > 0.0 else None


NO_AUGMENTATION = Augmentation()


@dataclass(frozen=True)
class _Alteration:
    how: Augmentation
    view_B: torch.Tensor

    def positions(self, positions_BL: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
        if not self.how.shuffle:
            return positions_BL
        return torch.where(self.view_B[:, None] == 0, shuffled_positions(positions_BL, mask_BL), positions_BL)

    def embedded(self, embedded_BLD: torch.Tensor) -> torch.Tensor:
        if self.how.cut_share == 0.0:
            return embedded_BLD
        cut_BLD = cut_features(embedded_BLD, self.how.cut_share)
        return torch.where(self.view_B[:, None, None] == 1, cut_BLD, embedded_BLD)


@dataclass(frozen=True)
class Slice:
    """Rows of a batch that were padded and encoded together.

    Attributes:
        places: which rows of the flattened batch ``(V * B)`` these are, int64 on the device.
        view_B: view of each row, on the device.
        starts: where each row starts in its column's flat ids (numpy).
        ids_BL, mask_BL: token ids and 1 for real tokens, on the device.
        constants: the prompt as it was drawn for these rows.
        tokens: what the backbone made of them.
    """

    places: torch.Tensor
    view_B: torch.Tensor
    starts: np.ndarray
    ids_BL: torch.Tensor
    mask_BL: torch.Tensor
    constants: Constants
    tokens: Tokens


@dataclass(frozen=True)
class Batch:
    """One step.

    Attributes:
        rows: row numbers ``(B,)``.
        slices: all views, cut by length.
        projected_XD: what the contrastive terms compare, ``(V * B, D)`` in float32, view after view.
        labels_B: labels of the rows, or None.
        step: updates done before this one.
        epoch: passes over the rows done before this one.
        real_tokens: tokens that went in, padding left out.
    """

    rows: np.ndarray
    slices: tuple[Slice, ...]
    projected_XD: torch.Tensor
    labels_B: torch.Tensor | None
    step: int
    epoch: int
    real_tokens: int

    @property
    def views(self) -> tuple[torch.Tensor, ...]:
        """``projected_XD`` as one ``(B, D)`` per view."""
        return self.projected_XD.split(len(self.rows))

    def in_order(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Join one tensor per slice, ``(rows of the slice, ...)``, in the order of the flattened batch."""
        return torch.cat(list(parts))[torch.cat([piece.places for piece in self.slices]).argsort()]


def project_in_order(encoder: SentenceEncoder, places: Sequence[torch.Tensor], parts: Sequence[Tokens]) -> torch.Tensor:
    """Return what the loss compares, ``(X, D)`` in float32 in the order of ``places``.

    All rows go through the projector together: it may normalise over them.
    """
    order = torch.cat(list(places)).argsort()
    pooled_XD = torch.cat([tokens.pooled_BD for tokens in parts])[order]
    noise = [tokens.noise_BD for tokens in parts if tokens.noise_BD is not None]
    return encoder.project(pooled_XD, torch.cat(noise)[order] if noise else None).float()


def encode_batch(
    encoder: SentenceEncoder,
    table: TokenTable,
    rows: np.ndarray,
    *,
    row_groups: int,
    augmentation: Augmentation,
    rng: np.random.Generator,
    step: int,
    epoch: int,
    device: torch.device,
    bf16: bool,
) -> Batch:
    """Encode all views of a batch together: every copy of a sentence gets its own dropout.

    Args:
        encoder: in training mode.
        table: the tokenised rows.
        rows: row numbers of the batch.
        row_groups: length-sorted slices to make.
        augmentation: how copies are made to differ.
        rng: draws the augmentation of token ids.
        step: updates done before.
        epoch: passes over the rows done before.
        device: where the encoder is.
        bf16: whether matrix products run in bfloat16.
    """
    slices, real = [], 0
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
        noise_TND = None
        if encoder.denoise != "none":
            noise_TND = encoder.noise(max(int(column.lengths(rows).max()) for column in table.columns) + 1)
        for padded in pad_in_groups(table, rows, row_groups, augmentation.change_ids(rng)):
            ids_BL = torch.from_numpy(padded.ids_BL).to(device, non_blocking=True)
            mask_BL = torch.from_numpy(padded.mask_BL).to(device, non_blocking=True)
            view_B = torch.from_numpy(padded.views).to(device)
            constants = Constants(encoder.prefix(len(ids_BL)), noise_TND)
            template_B = view_B.clamp(max=len(encoder.templates) - 1) if encoder.templates else None
            tokens = encoder.pooled(
                ids_BL, mask_BL, constants, template_B=template_B, alter=augmentation.alteration(view_B)
            )
            places = torch.from_numpy(padded.places).to(device)
            slices.append(Slice(places, view_B, padded.starts, ids_BL, mask_BL, constants, tokens))
            real += int(padded.mask_BL.sum())
        projected_XD = project_in_order(encoder, [piece.places for piece in slices], [piece.tokens for piece in slices])
    labels_B = None if table.labels is None else torch.from_numpy(table.labels[rows]).to(device)
    return Batch(rows, tuple(slices), projected_XD, labels_B, step, epoch, real)
