"""The sentence encoder: backbone, deep prompt, pooler and the layer after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from cse.errors import CseError, nearest
from cse.model.attention import Prefix, visible_columns
from cse.model.backbone import Backbone, find_backbone, load_backbone
from cse.model.pooling import NEEDS_ALL_LAYERS, POOLERS, TanhMlp, pool
from cse.model.prompts import DeepPrompt
from cse.runtime.encode import cosine_similarity, encode_sentences, is_text, prepare_tokenizer


@dataclass(frozen=True)
class ParameterCounts:
    """The three counts that papers mix up (each a number of weights).

    Attributes:
        prompts: the prompt table.
        trained: all that the optimiser updates.
        stored: what a checkpoint keeps beyond the backbone for use at inference.
        backbone: the language model.
    """

    prompts: int
    trained: int
    stored: int
    backbone: int


class SentenceEncoder(nn.Module):
    """Encode sentences with a (usually frozen) language model and its prompts.

    Args:
        backbone: the language model.
        prompt: deep prompt, or None for the bare backbone.
        pooler: ``cls``, ``mean``, ``mean_top2`` or ``mean_first_last``; None: as the backbone was made for.
        mlp: layer after pooling: ``none``, ``train_only`` (in the loss only) or ``always``.
        first_layer: for ``mean_first_last``, ``embeddings`` or ``block1``.
        position_shift: whether tokens take positions from the prompt's length on.
        frozen: whether the backbone keeps its weights.

    Raises:
        CseError: an unknown pooler, or a position table that is too short for the prompt.
    """

    def __init__(
        self,
        backbone: Backbone,
        prompt: DeepPrompt | None = None,
        *,
        pooler: str | None = None,
        mlp: str = "none",
        first_layer: str = "embeddings",
        position_shift: bool = True,
        frozen: bool = True,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.prompt = prompt
        self.pooler = pooler or backbone.pooling
        if self.pooler not in POOLERS:
            raise CseError(f"pooler: {self.pooler!r} is none of {', '.join(POOLERS)}{nearest(self.pooler, POOLERS)}")
        self.mlp_use = mlp
        self.mlp = TanhMlp(backbone.hidden_size) if mlp != "none" else None
        self.first_layer = first_layer
        self.position_shift = position_shift
        self.frozen = frozen
        self.dimension = backbone.hidden_size
        self.shift = prompt.length if prompt is not None and position_shift else 0
        self.max_length = backbone.usable_length(self.shift)
        if self.max_length < 3:
            raise CseError(
                f"prompt.length: {self.shift} leaves {max(self.max_length, 0)} of the {backbone.max_positions} "
                f"positions of {backbone.files.name}; give fewer, or set prompt.position_shift: false"
            )
        self._tokenizer = prepare_tokenizer(backbone.tokenizer, self.max_length)
        backbone.requires_grad_(not frozen)
        self.eval()

    @classmethod
    def load(cls, path_or_name: str | Path, *, backbone: str | None = None) -> SentenceEncoder:
        """Load a trained checkpoint (a folder) or a bare backbone (a folder or hub id), ready to encode.

        Args:
            path_or_name: folder written by training, folder of a backbone, or hub id.
            backbone: where the checkpoint's backbone is now, if not where it was at training.

        Raises:
            CseError: nothing usable there, a truncated checkpoint, or one made for another backbone.
        """
        from cse.model.checkpoint import is_checkpoint, load_checkpoint

        if is_checkpoint(Path(path_or_name)):
            return load_checkpoint(Path(path_or_name), backbone=backbone)
        if (Path(path_or_name) / "bundle.json").is_file():
            raise CseError(f"{path_or_name}: this is an ONNX bundle; load it with cse.OnnxEncoder")
        return cls(load_backbone(find_backbone(str(path_or_name))))

    def forward(self, ids_BL: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
        """Embed tokenised rows ``(B, L)`` as ``(B, D)``; see ``embed``."""
        return self.embed(ids_BL, mask_BL, self.prefix(ids_BL.shape[0]))

    def prefix(self, rows: int = 1) -> Prefix | None:
        """Return the prompt's keys and values; the same for all rows except in training, with prompt dropout."""
        return None if self.prompt is None else self.prompt(self.backbone, rows)

    def embed(self, ids_BL: torch.Tensor, mask_BL: torch.Tensor, prefix: Prefix | None) -> torch.Tensor:
        """Embed tokenised rows behind a given prefix.

        Args:
            ids_BL: token ids ``(B, L)``.
            mask_BL: 1 for real tokens, 0 for padding ``(B, L)``.
            prefix: keys and values per layer, from ``prefix``.

        Returns:
            ``(B, D)``; in training mode after the MLP where there is one, else after it only if it is kept.
        """
        all_layers = self.pooler in NEEDS_ALL_LAYERS
        output = self.backbone.model(
            input_ids=ids_BL,
            attention_mask=visible_columns(mask_BL, 0 if self.prompt is None else self.prompt.length),
            position_ids=self.backbone.positions(mask_BL, self.shift),
            prefix=prefix,
            output_hidden_states=all_layers,
        )
        pooled_BD = pool(
            self.pooler,
            output.last_hidden_state,
            mask_BL,
            output.hidden_states if all_layers else (),
            first_layer=0 if self.first_layer == "embeddings" else 1,
        )
        if self.mlp is not None and (self.training or self.mlp_use == "always"):
            return self.mlp(pooled_BD)
        return pooled_BD

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return what the optimiser updates, by name: the one list that training, saving and counting go by."""
        return {name: weight for name, weight in self.named_parameters() if weight.requires_grad}

    def stored_weights(self) -> dict[str, torch.Tensor]:
        """Return the weights that a checkpoint holds: trained ones that inference needs, never a frozen backbone."""
        extras = () if self.mlp_use == "always" else ("mlp.",)
        return {name: weight.detach() for name, weight in self.trainable().items() if not name.startswith(extras)}

    def counts(self) -> ParameterCounts:
        """Count prompts, trained weights, stored weights and the backbone's weights."""
        return ParameterCounts(
            prompts=0 if self.prompt is None else self.prompt.table.numel(),
            trained=sum(weight.numel() for weight in self.trainable().values()),
            stored=sum(weight.numel() for weight in self.stored_weights().values()),
            backbone=sum(weight.numel() for weight in self.backbone.model.parameters()),
        )

    def encode(
        self,
        sentences: str | Sequence[str],
        batch_size: int = 64,
        normalize: bool = True,
        show_progress_bar: bool = False,
    ) -> np.ndarray:
        """Encode sentences in float32, dropout off, truncated only at the position table's end.

        Args:
            sentences: ``n`` sentences, or one.
            batch_size: sentences per forward pass.
            normalize: whether to scale each embedding to unit length.
            show_progress_bar: whether to draw a bar on stderr.

        Returns:
            float32 ``(n, D)``, or ``(D,)`` for one sentence.

        Raises:
            CseError: an item that is no string, or an embedding that is not a number (names the sentence).
        """
        device = next(self.parameters()).device
        was_training = self.training
        self.eval()

        with torch.no_grad():
            prefix = self.prefix()

        def embed_rows(ids_BL: np.ndarray, mask_BL: np.ndarray) -> np.ndarray:
            ids = torch.from_numpy(ids_BL).to(device)
            mask = torch.from_numpy(mask_BL).to(device)
            with torch.no_grad(), torch.autocast(device.type, enabled=False):
                return self.embed(ids, mask, prefix).float().cpu().numpy()

        try:
            return encode_sentences(
                sentences,
                tokenizer=self._tokenizer,
                embed=embed_rows,
                dimension=self.dimension,
                max_length=self.max_length,
                pad_id=self.backbone.pad_id,
                batch_size=batch_size,
                normalize=normalize,
                show_progress_bar=show_progress_bar,
            )
        finally:
            self.train(was_training)

    def similarity(self, a: Sequence[str] | np.ndarray, b: Sequence[str] | np.ndarray) -> np.ndarray:
        """Return cosines ``(n, m)`` between sentences or embeddings ``a`` and ``b``."""
        return cosine_similarity(*(self.encode(x) if is_text(x) else x for x in (a, b)))  # type: ignore[arg-type]
