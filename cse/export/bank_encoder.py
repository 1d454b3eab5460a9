"""A bank in torch: the pass that is traced into its graph, and the encoder that the graph is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import nn

from cse.export.row_updates import RowUpdates
from cse.model.backbone import Backbone, load_backbone
from cse.model.checkpoint import find_recorded_backbone
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.bank import Bank, Chosen, read_bank_manifest
from cse.runtime.domain import POOLERS, Domain
from cse.runtime.encode import Encoded
from cse.runtime.mixed import OfDomains, encode_mixed, feed, finish
from cse.runtime.uses import check_dimensions


class BankPass(nn.Module):
    """Backbone and pooler for rows with prompts of their own, which are inputs, not parameters.

    Args:
        adapters: its layers that take low-rank updates, see ``RowUpdates``; None: rows have no updates.
    """

    def __init__(self, backbone: Backbone, adapters: Sequence[str] | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        self.updates = None if adapters is None else RowUpdates(backbone, adapters).attach()

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        domain: torch.Tensor,
        prompt: torch.Tensor,
        prompt_length: torch.Tensor,
        position_shift: torch.Tensor,
        trained_cls: torch.Tensor,
        cls: torch.Tensor,
        pooling: torch.Tensor,
        update_down: torch.Tensor | None = None,
        update_up: torch.Tensor | None = None,
        update_rest: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return pooled vectors ``(B, D)``.

        Args:
            input_ids: token ids ``(B, L)``.
            attention_mask: 1 for real tokens ``(B, L)``.
            domain: number of each row's domain among the ``U`` domains of the batch ``(B,)``.
            prompt: keys and values ``(U * 2 * layers, H, P, K)``: for each domain the first layer's keys, its values,
                the second layer's keys, ...
            prompt_length: how many of the ``P`` columns each domain has ``(U,)``.
            position_shift: positions before the first token ``(U,)``.
            trained_cls: whether the domain has its own word vector of ``[CLS]`` ``(U,)``.
            cls: that vector ``(U, W)``; any number where it has none.
            pooling: place of the pooler in ``POOLERS`` ``(U,)``.
            update_down: of each domain's layers ``(U, r, i)``, see ``RowUpdates``, or None, as the next two.
            update_up: likewise ``(U, 1 + r, o)``.
            update_rest: likewise ``(U, x)``.
        """
        updated: AbstractContextManager[None] = nullcontext()
        if self.updates is not None and update_down is not None and update_up is not None and update_rest is not None:
            updated = self.updates.applied(update_down[domain], update_up[domain], update_rest[domain])
        with updated:
            column_BL = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
            begins_BL = column_BL == 0
            replaced_BL = begins_BL & trained_cls[domain][:, None]
            words_BLD = torch.where(replaced_BL[:, :, None], cls[domain][:, None], self.backbone.words(input_ids))
            # padding takes position 0: behind a row with a shift it may reach beyond the position table
            positions_BL = self.backbone.positions(attention_mask, position_shift[domain][:, None]) * attention_mask
            embedded_BLD = self.backbone.embed(words_BLD, positions_BL)

            first_B = domain * (2 * self.backbone.layers)
            prefix = [
                (prompt[first_B + 2 * layer], prompt[first_B + 2 * layer + 1]) for layer in range(self.backbone.layers)
            ]
            columns_P = torch.arange(prompt.shape[2], device=prompt.device)
            prompt_BP = columns_P[None, :] < prompt_length[domain][:, None]
            last_BLD = self.backbone.run(
                embedded_BLD, positions_BL, attention_mask, prefix, every=False, prompt_BP=prompt_BP
            )[-1]

            dtype = last_BLD.dtype
            pooling_B1 = pooling[domain][:, None]
            ends_BL = column_BL == attention_mask.sum(dim=1, keepdim=True) - 1
            one_BL = torch.where(pooling_B1 == POOLERS.index("cls"), begins_BL.to(dtype), ends_BL.to(dtype))
            weight_BL = torch.where(pooling_B1 == POOLERS.index("mean"), attention_mask.to(dtype), one_BL)
            weight_BL1 = weight_BL[:, :, None]
            pooled_BD = (last_BLD * weight_BL1).sum(dim=1) / weight_BL1.sum(dim=1).clamp(min=1)
            return pooled_BD if self.backbone.dense is None else self.backbone.dense(pooled_BD)


class BankEncoder(OfDomains, nn.Module):
    """Encodes sentences, each with the prompts of its domain.

    Args:
        backbone: the frozen language model that the bank was made of.
    """

    def __init__(self, backbone: Backbone, bank: Bank) -> None:
        super().__init__()
        self.bank = bank
        self.bare = SentenceEncoder(backbone)
        self.bank_pass = BankPass(backbone, bank.manifest.adapters if bank.manifest.updates else None)
        self.eval()

    @classmethod
    def load(cls, folder: str | Path, *, backbone: str | None = None) -> BankEncoder:
        """Load a bank.

        Args:
            backbone: where the language model is now, if it moved.
        """
        read_bank_manifest(Path(folder))
        bank = Bank(folder)
        files = find_recorded_backbone(bank.folder, {"backbone": bank.manifest.backbone}, backbone)
        return cls(load_backbone(files), bank)

    def encode_counting(
        self,
        sentences: str | Sequence[str],
        batch_size: int | None = None,
        *,
        normalize: bool | None = None,
        show_progress_bar: bool = False,
        domain: Chosen = None,
        role: str | None = None,
        dimensions: int | None = None,
    ) -> Encoded:
        """Encode like ``encode``, in float32 without dropout, and count the sentences that were cut."""
        device = next(self.parameters()).device
        was_training = self.training
        self.eval()

        def embed(ids: np.ndarray, mask: np.ndarray, rows: Sequence[Domain]) -> np.ndarray:
            given = {"input_ids": ids, "attention_mask": mask, **feed(rows, self.bank.manifest.updates)}
            moved = {name: torch.from_numpy(array).to(device) for name, array in given.items()}
            with torch.no_grad(), torch.autocast(device.type, enabled=False):
                return finish(self.bank_pass(**moved).float().cpu().numpy(), rows)

        try:
            options = {"tokenizers": self.bare.text_tokenizers, "max_length": self.bare.max_length}
            prepared = self._prepare(sentences, domain, role=role, **options)
            check_dimensions(dimensions, [], prepared.width or self.bare.dimension)
            return encode_mixed(
                prepared,
                embed,
                normalize=True if normalize is None else normalize,
                keep=dimensions,
                dimension=self.bare.dimension,
                pad_id=self.bare.backbone.pad_id,
                batch_size=64 if batch_size is None else batch_size,
                show_progress_bar=show_progress_bar,
            )
        finally:
            self.train(was_training)
