"""Find, check and load the pretrained language model under the prompts."""

from __future__ import annotations

import copy
import dataclasses
from functools import cached_property
from operator import attrgetter
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn

from cse.errors import CseError, one_line
from cse.model.backbone_checks import check_tokenizer, checked_config
from cse.model.backbone_files import BackboneFiles, read_tokenizer
from cse.model.declared import Declared, declared_by
from cse.model.dense import read_dense
from cse.model.dropout import Dropout
from cse.model.quiet import quietly
from cse.model.transformer import Transformer, load_model


class Backbone(Transformer):
    """A language model of a known family with its tokenizer.

    Attributes:
        tokenizer: fast tokenizer, shared with the runtime; no transformers tokenizer is kept.
        pooling: pooling that it was made for, ``mean``, ``cls`` or ``last``.
        hidden_dropout: its own dropout after each layer.
        dense: its layers behind the pooling, from ``(B, hidden)`` to ``(B, D)``; None for most.
        dimension: D, the width of its vectors; that of its layers without ``dense``.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        files: BackboneFiles,
        declared: Declared,
        dense: nn.Sequential | None = None,
    ) -> None:
        super().__init__(model)
        config: Any = model.config
        self.tokenizer = tokenizer
        self.files = files
        self.declared = declared
        self.pooling = declared.pooling or self.family.pooling
        self.hidden_dropout: float = getattr(config, self.family.hidden_dropout, 0.0)
        self.vocabulary: int = config.vocab_size
        self.dense = dense
        # layer and activation in turn
        self.dimension: int = self.hidden_size if dense is None else dense[-2].out_features  # type: ignore[assignment]

    @cached_property
    def special_ids(self) -> dict[str, int]:
        """Return the ids of ``cls``, ``sep`` and ``mask``."""
        first, last = self.around
        masks = [self.tokenizer.token_to_id(token) for token in ("[MASK]", "<mask>", "<|mask|>")]
        found = [mask for mask in masks if mask is not None]
        if (len(first), len(last)) != (1, 1) or not found:
            raise CseError(
                f"backbone.name: the tokenizer of {self.files.name} ({self.family.name}) has no begin, end and mask "
                "token, which templates with a mask, masked words and a trained [CLS] need; use a BERT or RoBERTa model"
            )
        return {"cls": first[0], "sep": last[0], "mask": found[0]}

    @cached_property
    def around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the ids that the tokenizer puts before and behind a text; decoders often have none."""
        tokenizer = plain_copy(self.tokenizer)
        bare, whole = (tokenizer.encode("a", add_special_tokens=special).ids for special in (False, True))
        start = next(place for place in range(len(whole)) if whole[place : place + len(bare)] == bare)
        return tuple(whole[:start]), tuple(whole[start + len(bare) :])

    def known(self, ids_BL: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
        """Return which tokens count in pooling; for a transformer, all real ones."""
        return mask_BL

    def switch_dropout_off(self) -> None:
        """Set the probability of every dropout, including attention dropout, to 0."""
        self._rounded = []
        for module in self.modules():
            if isinstance(module, Dropout):
                module.p = 0.0
            if isinstance(getattr(module, "attention_dropout", None), float):
                module.attention_dropout = 0.0  # type: ignore[assignment]

    def set_attention_dropout(self, p: float) -> None:
        """Set the probability of dropping a share of attention, in every layer."""
        for layer in self.blocks:
            attention = attrgetter(self.family.attention)(layer)
            name = "attention_dropout" if hasattr(attention, "attention_dropout") else "dropout"
            if isinstance(getattr(attention, name), Dropout):
                getattr(attention, name).p = p
            else:
                setattr(attention, name, p)

    @property
    def has_dropout(self) -> bool:
        """Whether two passes of one text differ in training."""
        rates = (getattr(module, "attention_dropout", 0.0) for module in self.modules())
        rounded = [module.p for module in self.modules() if isinstance(module, Dropout)]
        return any(rate > 0.0 for rate in (*rounded, *rates) if isinstance(rate, float))

    def use_as(self, *, max_length: int | None, texts: dict[str, str] | None) -> Backbone:
        """Read as many tokens, and put the task texts before a text, that a model's settings say; None: as declared."""
        said = {"max_length": max_length, "texts": texts}
        chosen: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
        self.declared = dataclasses.replace(self.declared, **chosen)
        return self

    def sibling(self) -> Backbone:
        """Return a backbone that shares only the memory of the weights, so moving it to a device, setting it to
        training or switching its dropout off leaves this one alone. Frozen weights only: in-place updates change both.
        """
        own: dict[int, Any] = {
            id(weight): nn.Parameter(weight.detach(), requires_grad=weight.requires_grad)
            for weight in self.parameters()
        }
        return copy.deepcopy(self, own | {id(self.tokenizer): self.tokenizer, id(self._rounded): []})


def plain_copy(tokenizer: Tokenizer) -> Tokenizer:
    """Return a copy that neither pads nor truncates."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_padding()
    copy.no_truncation()
    return copy


def load_backbone(files: BackboneFiles, pooling: str | None = None, *, dense: bool = True) -> Backbone:
    """Load a backbone in float32.

    Args:
        files: from ``find_backbone``.
        dense: whether to load the layers behind the pooling.
    """
    config = checked_config(files)
    if config.pad_token_id is None:
        raise CseError(
            f"backbone.name: {files.name} names no padding token; set pad_token_id in its config.json (any token will "
            "do, padding is masked)"
        )
    try:
        with quietly():  # no warning about heads that the encoder leaves out
            model, missing = load_model(files.folder, config)
    except Exception as error:  # the library's own, of many kinds
        reason = one_line(str(error).strip().splitlines()[0])[:200]
        raise CseError(f"backbone.name: cannot read the weights of {files.name}: {reason}; fetch them again") from None
    if missing:
        raise CseError(f"backbone.name: the weights of {files.name} lack {len(missing)} tensors, first {missing[0]}")
    tokenizer = read_tokenizer(files)
    check_tokenizer(tokenizer, config.vocab_size, files)
    declared = declared_by(files.folder, pooling)
    layers = read_dense(declared.dense, config.hidden_size) if dense else None
    return Backbone(model, tokenizer, files, declared, layers).eval()
