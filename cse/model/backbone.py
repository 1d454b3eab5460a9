"""Find, check and load the pretrained language model under the prompts."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoConfig, AutoModel
from transformers.utils import logging as transformers_logging

from cse.errors import CseError
from cse.model.attention import PREFIX_ATTENTION, Prefix, visible_columns
from cse.model.backbone_files import BackboneFiles, pooling_of, read_json, read_tokenizer
from cse.model.dropout import Dropout, replace_dropout

# model types whose position ids start after the padding id, as RoBERTa's do
_OFFSET_POSITIONS = {"roberta": True, "xlm-roberta": True, "camembert": True, "bert": False}


class Backbone(nn.Module):
    """A BERT- or RoBERTa-family language model with its tokenizer and the properties that prompts need.

    Attributes:
        model: the transformer, built without its own pooler.
        tokenizer: fast tokenizer, shared with the runtime; no transformers tokenizer is kept.
        layers, heads, hidden_size, head_size: shape of the model.
        pooling: pooling that the model was made for, ``mean`` or ``cls``.
    """

    def __init__(self, model: nn.Module, tokenizer: Tokenizer, files: BackboneFiles, pooling: str) -> None:
        super().__init__()
        config: Any = model.config
        self.model = model
        self.tokenizer = tokenizer
        self.files = files
        self.pooling = pooling
        self.layers: int = config.num_hidden_layers
        self.heads: int = config.num_attention_heads
        self.hidden_size: int = config.hidden_size
        self.head_size = self.hidden_size // self.heads
        self.hidden_dropout: float = config.hidden_dropout_prob
        self.pad_id: int = config.pad_token_id
        self.vocabulary: int = config.vocab_size
        self.max_positions: int = config.max_position_embeddings
        self.positions_after_pad = _OFFSET_POSITIONS[config.model_type]
        self.family = "roberta" if self.positions_after_pad else "bert"

    @cached_property
    def special_ids(self) -> dict[str, int]:
        """Return the ids of ``cls``, ``sep`` and ``mask``.

        Raises:
            CseError: the tokenizer does not add two tokens around a text, or has no mask token.
        """
        around = plain_copy(self.tokenizer).encode("").ids
        masks = [self.tokenizer.token_to_id(token) for token in ("[MASK]", "<mask>")]
        found = [mask for mask in masks if mask is not None]
        if len(around) != 2 or not found:
            raise CseError(
                f"backbone.name: the tokenizer of {self.files.name} has no begin, end and mask token; use a BERT or "
                "RoBERTa model"
            )
        return {"cls": around[0], "sep": around[1], "mask": found[0]}

    @property
    def blocks(self) -> list[Any]:
        """The transformer layers, first to last."""
        return list(self.model.encoder.layer)  # type: ignore[union-attr, arg-type]

    def words(self, ids_BL: torch.Tensor) -> torch.Tensor:
        """Return word vectors ``(B, L, D)``."""
        return self.model.embeddings.word_embeddings(ids_BL)  # type: ignore[union-attr, operator]

    def embed(self, words_BLD: torch.Tensor, positions_BL: torch.Tensor) -> torch.Tensor:
        """Return the first layer's input: word vectors plus position and type embeddings, normalised, with dropout."""
        return self.model.embeddings(inputs_embeds=words_BLD, position_ids=positions_BL)  # type: ignore[operator]

    def run(
        self,
        embedded_BLD: torch.Tensor,
        mask_BL: torch.Tensor,
        prefix: Prefix | None,
        *,
        every: bool = True,
        prompt_BP: torch.Tensor | None = None,
    ) -> list[torch.Tensor]:
        """Return the states ``(B, L, D)``: the input of the first layer, then every layer's output.

        Args:
            embedded_BLD: from ``embed``.
            mask_BL: 1 for real tokens ``(B, L)``.
            prefix: keys and values per layer, attended to in addition to the tokens.
            every: whether to return all states; otherwise only the last one, which saves memory.
            prompt_BP: which prompt columns each row sees ``(B, P)``; None: all.
        """
        visible = visible_columns(mask_BL, 0 if prefix is None else prefix[0][0].shape[-2], prompt_BP)
        states = [embedded_BLD]
        for block in self.blocks:
            state = block(states[-1], attention_mask=visible, prefix=prefix)
            states = [*states, state] if every else [state]
        return states

    def known(self, ids_BL: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
        """Return which tokens count in pooling; for a transformer, all real ones."""
        return mask_BL

    def positions(self, mask_BL: torch.Tensor, shift: int | torch.Tensor) -> torch.Tensor:
        """Return position ids ``(B, L)`` of the tokens after ``shift`` earlier positions, one number or ``(B, 1)``.

        BERT counts columns from ``shift``; RoBERTa counts real tokens from ``pad_id + 1 + shift`` and gives padding
        the position ``pad_id``, like the library with a cache of that length.
        """
        if self.positions_after_pad:
            count_BL = mask_BL.cumsum(dim=1) * mask_BL
            return count_BL + shift * mask_BL + self.pad_id
        return torch.arange(mask_BL.shape[1], device=mask_BL.device).expand_as(mask_BL) + shift

    def switch_dropout_off(self) -> None:
        """Set the probability of every dropout, including attention dropout, to 0."""
        for module in self.modules():
            if isinstance(module, Dropout):
                module.p = 0.0

    def sibling(self) -> Backbone:
        """Return a backbone that shares only the memory of the weights, so moving it to a device, setting it to
        training or switching its dropout off leaves this one alone. Frozen weights only: in-place updates change both.
        """
        own: dict[int, Any] = {
            id(weight): nn.Parameter(weight.detach(), requires_grad=weight.requires_grad)
            for weight in self.parameters()
        }
        return copy.deepcopy(self, own | {id(self.tokenizer): self.tokenizer})

    def usable_length(self, shift: int) -> int:
        """Return how many tokens fit in the position table after ``shift`` positions."""
        return self.max_positions - shift - (self.pad_id + 1 if self.positions_after_pad else 0)


def plain_copy(tokenizer: Tokenizer) -> Tokenizer:
    """Return a copy that neither pads nor truncates."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_padding()
    copy.no_truncation()
    return copy


def load_backbone(files: BackboneFiles, pooling: str | None = None, family: str | None = None) -> Backbone:
    """Load a backbone in float32; ``pooling`` overrides the one its folder declares.

    Raises:
        CseError: not a BERT- or RoBERTa-family model or not of ``family``, truncated or missing weights, no tokenizer
            or one of another model, an unsupported pooling.
    """
    config = _config(files)
    found = "roberta" if _OFFSET_POSITIONS[config.model_type] else "bert"
    if family not in (None, found):
        raise CseError(
            f"backbone.family: these settings were made for the {family} family, but {files.name} is a {found} model; "
            f"choose a preset for {found}, or set backbone.family: null to try it anyway"
        )
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # do not warn about heads that the encoder leaves out
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        model, loading = AutoModel.from_pretrained(
            files.folder,
            config=config,
            add_pooling_layer=False,
            attn_implementation=PREFIX_ATTENTION,
            dtype=torch.float32,
            output_loading_info=True,
        )
    except (SafetensorError, OSError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CseError(f"backbone.name: cannot read the weights of {files.name}: {reason}; fetch them again") from None
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
    missing = sorted(loading["missing_keys"])
    if missing:
        raise CseError(f"backbone.name: the weights of {files.name} lack {len(missing)} tensors, first {missing[0]}")
    tokenizer = read_tokenizer(files)
    if tokenizer.get_vocab_size() > config.vocab_size:
        raise CseError(
            f"backbone.name: the tokenizer of {files.name} has {tokenizer.get_vocab_size()} tokens, the model "
            f"{config.vocab_size}; they do not match, fetch them again"
        )
    replace_dropout(model)
    return Backbone(model, tokenizer, files, pooling or pooling_of(files.folder)).eval()


def _config(files: BackboneFiles) -> Any:
    kind = read_json(files.folder / "config.json").get("model_type")
    if kind not in _OFFSET_POSITIONS:
        raise CseError(
            f"backbone.name: {files.name} is a {kind!r} model; "
            f"use one of the families {', '.join(sorted(_OFFSET_POSITIONS))}"
        )
    try:
        return AutoConfig.from_pretrained(files.folder)
    except (OSError, ValueError, TypeError) as error:
        raise CseError(f"backbone.name: {files.folder / 'config.json'}: {error}".splitlines()[0]) from None
