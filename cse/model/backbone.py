"""Check and load the pretrained language model under the prompts, and choose which of its weights are trained."""

from __future__ import annotations

import copy
import dataclasses
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from operator import attrgetter
from typing import Any

import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from torch import nn
from torch.nn.utils import parametrize
from transformers import AutoConfig, AutoModel

from cse.artifact import short
from cse.choices import PoolerKind
from cse.errors import CseError, nearest
from cse.model.backbone_files import BackboneFiles, quietly, read_tokenizer, weight_files
from cse.model.declared import Declared, declared_by, read_json, reading
from cse.model.dropout import Dropout
from cse.model.families import BY_TYPE, FAMILIES, FULL, SLIDING, layer_types
from cse.model.pooling import read_dense
from cse.model.transformer import Transformer, load_model
from cse.runtime.tokens import Tokenizers


class LowRank(nn.Module):
    """A weight's update as a product of two thin matrices (LoRA, Hu et al. 2022, equation 3), at first zero."""

    def __init__(self, weight: torch.Tensor, rank: int) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.down = nn.Parameter(torch.randn(rank, columns) * columns**-0.5)
        self.up = nn.Parameter(torch.zeros(rows, rank))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight with its update ``(out, in)``."""
        return weight + self.up @ self.down


class Backbone(Transformer):
    """A language model of a known family with its tokenizer."""

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
        self.tokenizer = tokenizer  # shared with the runtime; no transformers tokenizer is kept
        self.files = files
        self.declared = declared
        self.pooling: PoolerKind = declared.pooling or self.family.pooling
        self.hidden_dropout: float = getattr(config, self.family.hidden_dropout, 0.0)
        self.vocabulary: int = config.vocab_size
        self.dense = dense  # behind the pooling, (B, hidden) -> (B, D): layer and activation in turn; None for most
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
        first, last = Tokenizers(self.tokenizer).around
        return tuple(first), tuple(last)

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

    def train_only(self, trained: str, lora_rank: int) -> None:
        """Let the optimiser see the weights that ``train.parameters`` names, and no others.

        ``lora`` adds two factors to the weight of every linear layer of the transformer's blocks.
        """
        if trained == "lora":
            for layer in linear_layers(self):
                parametrize.register_parametrization(layer, "weight", LowRank(layer.weight, lora_rank))
        for module in self.modules():
            for name, weight in module.named_parameters(recurse=False):
                chosen = {
                    "prompts": False,
                    "biases": name.endswith("bias"),
                    "norms": type(module).__name__.endswith("Norm"),  # LayerNorm, and each family's own RMSNorm
                    "lora": isinstance(module, LowRank),
                    "full": True,
                }
                weight.requires_grad_(chosen[trained])

    def sibling(self) -> Backbone:
        """Return a backbone that shares only the memory of the weights, so moving it to a device, setting it to
        training or switching its dropout off leaves this one alone. Frozen weights only: in-place updates change both.
        """
        own: dict[int, Any] = {
            id(weight): nn.Parameter(weight.detach(), requires_grad=weight.requires_grad)
            for weight in self.parameters()
        }
        return copy.deepcopy(self, own | {id(self.tokenizer): self.tokenizer, id(self._rounded): []})


def linear_layers(backbone: Backbone) -> dict[nn.Linear, str]:
    """Return the linear layers of the transformer's blocks with their paths in a block; ALBERT's blocks are one."""
    named = (pair for block in backbone.blocks for pair in block.named_modules())
    return {layer: path for path, layer in named if isinstance(layer, nn.Linear)}


@contextmanager
def merged(backbone: nn.Module) -> Iterator[None]:
    """Inside the block, low-rank updates are part of the weights, as in any model of the library."""
    layers: list[Any] = [layer for layer in backbone.modules() if parametrize.is_parametrized(layer)]
    kept = [(layer.parametrizations.weight[0], layer.parametrizations.weight.original.detach()) for layer in layers]
    for layer in layers:
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
    try:
        yield
    finally:
        for layer, (update, weight) in zip(layers, kept, strict=True):
            with torch.no_grad():
                layer.weight.set_(weight)
            parametrize.register_parametrization(layer, "weight", update)


def load_backbone(files: BackboneFiles, pooling: PoolerKind | None = None, *, dense: bool = True) -> Backbone:
    """Load a backbone in float32."""
    config = checked_config(files)
    with reading(f"{_WEIGHTS} {files.name}"), quietly():  # no warning about heads that the encoder leaves out
        model, missing = load_model(files.folder, config)
    if missing:
        raise CseError(f"backbone.name: the weights of {files.name} lack {len(missing)} tensors, first {missing[0]}")
    tokenizer = read_tokenizer(files)
    check_tokenizer(tokenizer, config.vocab_size, files)
    declared = declared_by(files.folder, pooling)
    layers = read_dense(declared.dense, config.hidden_size) if dense else None
    return Backbone(model, tokenizer, files, declared, layers).eval()


_AGAIN = "fetch it again"
_WEIGHTS = "backbone.name: cannot read the weights of"
_HIGHEST = 2**31  # no number of a model comes near
_LAYERS = ("num_hidden_layers", "n_layers", "num_hidden_groups", "inner_group_num")
_SHARED = 64  # layers that may share their weights, as in ALBERT
_COUNTS = (
    *_LAYERS, "num_attention_heads", "n_heads", "num_key_value_heads", "head_dim", "hidden_size", "dim",
    "intermediate_size", "hidden_dim", "vocab_size", "max_position_embeddings",
)  # fmt: skip


def checked_config(files: BackboneFiles) -> Any:
    """Return a backbone's configuration as the library reads it.

    What the library refuses is told in its words. First come numbers that would keep it busy or fill the memory; last,
    what it takes and computes something else with.
    """
    path = files.folder / "config.json"
    tree = read_json(path)
    kind = str(tree.get("model_type"))
    if kind not in BY_TYPE:
        own = "needs code of its own, which is not run" if "auto_map" in tree else f"is a {short(kind)} model"
        raise CseError(
            f"backbone.name: {files.name} {own}{nearest(kind, BY_TYPE)}; use a model of one of the families "
            f"{', '.join(family.name for family in FAMILIES)}"
        )
    if "quantization_config" in tree:
        raise CseError(f"backbone.name: {files.name} holds quantised weights; use the model that they were made from")
    shapes: dict[str, list[int]] = {}  # from the heads of the files alone
    for part in weight_files(files.folder):
        with reading(f"{_WEIGHTS} {files.name}"), safe_open(part, "pt") as file:
            shapes |= {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 - no mapping
    family, held = BY_TYPE[kind], sum(map(math.prod, shapes.values()))
    with reading(where := f"backbone.name: {path}"):
        for key, count in tree.items():
            if key in _COUNTS and count is not None and (type(count) is not int or count < 1):
                raise ValueError(f"{key} is {short(count)}")
        _check_numbers(tree, layers=max(_SHARED, len(shapes)))
        config: Any = AutoConfig.from_pretrained(files.folder)
        with torch.device("meta"):  # takes no memory
            pooler = {"add_pooling_layer": False} if family.own_pooler else {}
            model = AutoModel.from_config(copy.deepcopy(config), **pooler)
        described = sum(weight.numel() for weight in model.parameters())
        if described > 2 * held:  # below that the names of what is missing say more
            raise ValueError(f"describes a model of {described:,} weights, and its files hold {held:,}")
        count, kinds = config.num_hidden_layers, layer_types(config, config.num_hidden_layers)
        own_layer = re.compile(rf"(?:.*\.)?{re.escape(family.stored or family.layers)}\.(\d{{1,9}})\.")
        there = max((int(found[1]) + 1 for name in shapes if (found := own_layer.match(name))), default=0)
        if there != getattr(config, "num_hidden_groups", count):
            raise ValueError(f"describes {count} layers, and its weights {there}")
        if len(kinds) != count or not {*kinds} <= {FULL, SLIDING}:
            raise ValueError(f"layer_types does not fit {count} layers")
        if SLIDING in kinds and (type(config.sliding_window) is not int or config.sliding_window < 1):
            raise ValueError(f"sliding_window is {short(config.sliding_window)}")
        if config.pad_token_id is None or not 0 <= config.pad_token_id < config.vocab_size:
            raise CseError(f"{where}: pad_token_id is {config.pad_token_id}; set it to any token, padding is masked")
    return config


def _check_numbers(value: Any, layers: int, key: str = "") -> None:
    """Refuse numbers that are none, or larger than any that a model of so many layers at most needs."""
    if isinstance(value, dict):
        for name, inner in value.items():
            _check_numbers(inner, layers, str(name))
    elif isinstance(value, list):
        for inner in value:
            _check_numbers(inner, layers, key)
    elif isinstance(value, int | float) and not abs(value) <= (layers if key in _LAYERS else _HIGHEST):
        raise ValueError(f"{short(key)} is {short(value)}")


def check_tokenizer(tokenizer: Tokenizer, vocabulary: int, files: BackboneFiles) -> None:
    """Refuse a tokenizer that makes ids without a word vector, or more of a text than the text."""
    who = f"backbone.name: the tokenizer of {files.name}"
    added = tokenizer.num_special_tokens_to_add(is_pair=False)
    padded = (tokenizer.padding or {}).get("length") or 0
    if added > 64 or padded > 2**16:
        raise CseError(f"{who} puts {max(added, padded):,} tokens around a text; {_AGAIN}")
    ids = tokenizer.encode("a").ids
    if len(ids) > max(8, padded) + added:  # a letter is at most 8 tokens
        raise CseError(f"{who} has a template that repeats the text; {_AGAIN}")
    if (highest := max(*tokenizer.get_vocab().values(), *ids, 0)) >= vocabulary:
        raise CseError(f"{who} has tokens up to id {highest}, and the model {vocabulary} word vectors; {_AGAIN}")
