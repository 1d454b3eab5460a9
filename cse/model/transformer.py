"""A pretrained transformer, called layer by layer with the keys and values of a prompt in each."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from transformers import AutoModel

from cse.model.dropout import replace_dropout
from cse.model.families import BY_TYPE, FULL, SLIDING, layer_types
from cse.model.passes import (
    LONGEST,
    PREFIX_ATTENTION,
    WIDTHS,
    LayerPrefix,
    Packed,
    Prefix,
    as_numbers,
    has_kernel,
    kernel,
    visible_columns,
)


class Transformer(nn.Module):
    """A model of a known family and the properties that prompts need."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        config: Any = model.config
        self.model: Any = model  # the library's, without its own pooler, attending with PREFIX_ATTENTION
        self.family = BY_TYPE[config.model_type]
        self.layers = len(self.blocks)
        queries: int = config.num_attention_heads
        self.heads: int = getattr(config, "num_key_value_heads", None) or queries  # of keys and values
        self.hidden_size: int = config.hidden_size
        self.head_size: int = getattr(config, "head_dim", None) or self.hidden_size // queries
        self.pad_id: int = config.pad_token_id
        self.max_positions: int = config.max_position_embeddings
        self._rounded: list[Any] = []  # see _layers; a list, so that torch counts none of them as weights

    @property
    def blocks(self) -> list[Any]:
        """The transformer layers, first to last."""
        return self.family.layers_of(self.model)

    @property
    def word_table(self) -> nn.Parameter:
        """The word vectors ``(vocabulary, W)``."""
        return self.model.get_input_embeddings().weight

    @property
    def word_size(self) -> int:
        """Width of the word vectors; narrower than the layers in some models."""
        return self.word_table.shape[1]

    def words(self, ids_BL: torch.Tensor) -> torch.Tensor:
        """Return word vectors ``(B, L, W)``."""
        return self.model.get_input_embeddings()(ids_BL)

    def embed(self, words_BLW: torch.Tensor, positions_BL: torch.Tensor) -> torch.Tensor:
        """Return the first layer's input ``(B, L, D)``: in BERT, word vectors plus position and type embeddings,
        normalised, with dropout.
        """
        return self.family.first_input(self.model, words_BLW, positions_BL)

    def keys_and_values(self, hidden_LPD: torch.Tensor) -> Prefix:
        """Pass hidden states ``(layers, P, D)`` through each layer's own projections: ``(H, P, K)`` each."""
        layers, exact = self._layers(hidden_LPD.device)
        with exact:
            return [
                self.family.keys_and_values(layer, hidden_PD, self.heads, self.head_size)
                for layer, hidden_PD in zip(layers, hidden_LPD.to(_type_of(layers)), strict=True)
            ]

    def run(
        self,
        embedded_BLD: torch.Tensor,
        positions_BL: torch.Tensor,
        mask_BL: torch.Tensor,
        prefix: Prefix | None,
        *,
        every: bool = True,
        prompt_BP: torch.Tensor | None = None,
        packed: Packed | None = None,
    ) -> list[torch.Tensor]:
        """Return the states ``(B, L, D)``: the input of the first layer, then every layer's output, the last one after
        the model's last norm if it has one.

        Args:
            positions_BL: from ``positions``; only rotary positions matter here.
            every: whether to return all states; otherwise only the last one, which saves memory.
            prompt_BP: which prompt columns each row sees ``(B, P)``; None: all.
            packed: where the real tokens are, for layers to see no others, if the model ``packs``.
        """
        family, config = self.family, self.model.config
        blocks, exact = self._layers(embedded_BLD.device)
        embedded_BLD = embedded_BLD.to(_type_of(blocks))
        if packed is not None:
            embedded_BLD = packed.pack(embedded_BLD)
            positions_BL = packed.pack(positions_BL) if family.positions == "rotary" else positions_BL
        given = family.by_type(self.model, embedded_BLD, positions_BL)
        length = 0 if prefix is None else prefix[0][0].shape[-2]
        # attention step by step, as in training on a CPU, adds numbers: made here, once for all layers
        in_steps = embedded_BLD.device.type == "cpu" and torch.is_grad_enabled() and not family.relative

        def columns(kind: str) -> torch.Tensor:
            reach = family.reach(config) if kind == SLIDING else None
            seen = visible_columns(mask_BL, length, prompt_BP, causal=family.is_causal(config), reach=reach)
            return as_numbers(seen, embedded_BLD.dtype) if in_steps else seen

        visible = {kind: packed or columns(kind) for kind in given}
        prefixes: list[LayerPrefix | None] = [None] * len(blocks) if prefix is None else [*prefix]
        states = [embedded_BLD]
        with exact:
            for block, kind, own in zip(blocks, layer_types(config, len(blocks)), prefixes, strict=True):
                state = family.through(block, states[-1], visible[kind], own, given[kind])
                states = [*states, state] if every else [state]
        if packed is not None:
            states = [packed.pad(state, len(mask_BL)) for state in states]
        if family.last_norm is not None:
            states[-1] = getattr(self.model, family.last_norm)(states[-1])
        return states

    def packs(self, device: torch.device, longest: int) -> bool:
        """Return whether the kernel for packed rows computes this model's attention in 16 bits."""
        config = self.model.config
        whole = set(layer_types(config)) == {FULL} and not self.family.is_causal(config) and not self.family.relative
        fits = longest <= LONGEST and self.head_size in WIDTHS and self.heads == config.num_attention_heads
        usable = device.type == "cuda" and whole and fits and has_kernel()
        return usable and bool(kernel().is_right(device, self.head_size))

    def _layers(self, device: torch.device) -> tuple[list[Any], AbstractContextManager[Any]]:
        """Return the layers to run and the context to run them in.

        Under autocast, the layers of a frozen model are copies whose weights were rounded once: autocast would round
        every weight at every use, and its states between the layers are in float32, twice the memory to pass over.
        """
        layers = self.blocks
        if not torch.is_autocast_enabled(device.type) or any(weight.requires_grad for weight in self.parameters()):
            return layers, nullcontext()
        dtype = torch.get_autocast_dtype(device.type)
        made = next(self._rounded[0].parameters()) if self._rounded else None
        if made is None or (made.dtype, made.device) != (dtype, device):
            self._rounded = [layer.to(dtype) for layer in copy.deepcopy(layers)]
        if self._rounded[0].training != self.training:
            for layer in self._rounded:
                layer.train(self.training)
        return self._rounded, torch.autocast(device.type, enabled=False)

    def positions(self, mask_BL: torch.Tensor, shift: int | torch.Tensor) -> torch.Tensor:
        """Return position ids ``(B, L)`` of the tokens after ``shift`` earlier positions, one number or ``(B, 1)``.

        BERT, and models with rotary positions, count columns from ``shift``; RoBERTa counts real tokens from
        ``pad_id + 1 + shift`` and gives padding the position ``pad_id``, like the library with a cache of that length.
        """
        if self.family.positions == "after_padding":
            count_BL = mask_BL.cumsum(dim=1) * mask_BL
            return count_BL + shift * mask_BL + self.pad_id
        return torch.arange(mask_BL.shape[1], device=mask_BL.device).expand_as(mask_BL) + shift

    def usable_length(self, shift: int) -> int:
        """Return how many tokens fit in the position table after ``shift`` positions."""
        return self.max_positions - shift - (self.pad_id + 1 if self.family.positions == "after_padding" else 0)


def _type_of(layers: list[Any]) -> torch.dtype:
    """Return the type of the layers' weights."""
    return next(layers[0].parameters()).dtype


def load_model(
    folder: Any, config: Any, *, dtype: torch.dtype = torch.float32, **place: Any
) -> tuple[nn.Module, list[str]]:
    """Load the library's model as ``Transformer`` needs it; also return the names of weights that its files lack."""
    family = BY_TYPE[config.model_type]
    model, loading = AutoModel.from_pretrained(
        folder,
        config=config,
        attn_implementation=PREFIX_ATTENTION,
        dtype=dtype,
        output_loading_info=True,
        **({"add_pooling_layer": False} if family.own_pooler else {}),
        **place,
    )
    if family.adapt is not None:
        family.adapt(model)
    replace_dropout(model)
    return model, sorted(loading["missing_keys"])
