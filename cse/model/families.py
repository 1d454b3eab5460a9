"""What a prompt must know of a family of language models: one row each, and the properties that rows share.

A family enters as a row here and a case in ``tests/model/families.py``. It needs layers that can be called one by one
and attention that goes through transformers' ``AttentionInterface``; where a model computes attention itself, ``adapt``
replaces it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

import torch
from torch import nn
from transformers import AttentionInterface

from cse.model.passes import LayerPrefix, Packed

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Family:
    """A family of models that differ in size and training only."""

    name: str
    types: tuple[str, ...]  # `model_type` in `config.json`
    layers: str  # path of the layers in the model; they may be nested, see `layers_of`
    attention: str  # path in a layer
    key: str  # projections in the attention; the same name for one matrix of queries, keys and values
    value: str
    # learned, from 0; learned, real tokens from the padding id + 1; or rotary
    positions: Literal["columns", "after_padding", "rotary"]
    stored: str | None = None  # path of the layers in files of weights, where it is another
    embeddings: str | None = "embeddings"  # from word vectors to the first layer; None: they enter as they are
    input_norm: str | None = (
        "embeddings.LayerNorm"  # of word vectors, for a prompt before the first layer; None: no such
    )
    widen: str | None = None  # linear map of word vectors to the width of the layers; may be missing in a model
    before: str | None = None  # norm in a layer before its attention
    key_norm: str | None = None  # norm of keys in the attention
    last_norm: str | None = None  # norm after the last layer
    causal: bool = False  # whether tokens see no later ones, unless the model's config says otherwise
    inclusive: bool = False  # whether the config's sliding window counts the tokens to each side, not the token itself
    hidden_dropout: str = "hidden_dropout_prob"  # the config's name of the dropout after a layer
    own_pooler: bool = True  # whether the model takes `add_pooling_layer`
    mlm_head: Literal["bert", "roberta"] | None = None  # layout of the pretrained head that this project can read
    pooling: Literal["cls", "mean", "last"] = "cls"  # of a model that does not say
    relative: bool = False  # whether a learned bias between tokens joins the scores
    adapt: Callable[[Any], None] | None = None  # changes to a loaded model, see the module's docstring

    def is_causal(self, config: Any) -> bool:
        """Return whether a model's tokens see no later ones."""
        both_ways = getattr(config, "use_bidirectional_attention", False) or getattr(config, "is_causal", True) is False
        return self.causal and not both_ways

    def reach(self, config: Any) -> int:
        """Return how many tokens away a token of a sliding layer sees."""
        return int(config.sliding_window) - (0 if self.inclusive else 1)

    def layers_of(self, model: Any) -> list[Any]:
        """Return the layers in the order in which a pass calls them; ALBERT calls each several times."""
        found = attrgetter(self.layers)(model)
        if not hasattr(found[0], "albert_layers"):
            return list(found)
        count, groups = model.config.num_hidden_layers, model.config.num_hidden_groups
        return [layer for i in range(count) for layer in found[int(i / (count / groups))].albert_layers]

    def first_input(self, model: Any, words_BLD: torch.Tensor, positions_BL: torch.Tensor) -> torch.Tensor:
        """Return the first layer's input ``(B, L, D)`` of word vectors ``(B, L, W)``."""
        if self.embeddings is None:
            return words_BLD
        positions = {} if self.positions == "rotary" else {"position_ids": positions_BL}
        made = attrgetter(self.embeddings)(model)(input_ids=None, inputs_embeds=words_BLD, **positions)
        return self._widened(model, made)

    def normalised(self, model: Any, words_PD: torch.Tensor) -> torch.Tensor:
        """Return vectors ``(P, W)`` as the first layer sees them, without position and type."""
        assert self.input_norm is not None  # noqa: S101 - checked where the prompt is made
        return self._widened(model, attrgetter(self.input_norm)(model)(words_PD))

    def by_type(self, model: Any, like_BLD: torch.Tensor, positions_BL: torch.Tensor) -> dict[str, dict[str, Any]]:
        """Return what layers of each type get besides states, mask and prompt; the same for all layers of a type."""
        types = set(layer_types(model.config))
        if self.relative:
            return {kind: {"bias_1HLL": model.encoder.compute_position_bias(like_BLD[:1])} for kind in types}
        if self.positions != "rotary":
            return {kind: {} for kind in types}
        several = hasattr(model.rotary_emb, "layer_types")
        return {
            kind: {"position_embeddings": model.rotary_emb(like_BLD, positions_BL, *([kind] if several else []))}
            for kind in types
        }

    def through(
        self,
        layer: Any,
        state_BLD: torch.Tensor,
        visible: torch.Tensor | Packed,
        prefix: LayerPrefix | None,
        given: dict[str, Any],
    ) -> torch.Tensor:
        """Return a layer's output ``(B, L, D)``; ``given`` is from ``by_type``."""
        # the layer hands the prefix on to ``prefix_attention``, registered with the library by name; MPNet's passes on
        # this one argument
        own = {"position_bias": (given["bias_1HLL"], prefix)} if self.relative else given | {"prefix": prefix}
        output = layer(state_BLD, attention_mask=visible, **own)
        return output[0] if isinstance(output, tuple) else output

    def keys_and_values(self, layer: Any, hidden_PD: torch.Tensor, heads: int, head_size: int) -> LayerPrefix:
        """Pass hidden states ``(P, D)`` through a layer's projections: keys and values ``(H, P, K)``, unrotated."""
        attention = attrgetter(self.attention)(layer)
        if self.before is not None:
            hidden_PD = attrgetter(self.before)(layer)(hidden_PD)
        if self.key == self.value:
            _, key, value = getattr(attention, self.key)(hidden_PD).chunk(3, dim=-1)
        else:
            key, value = (getattr(attention, name)(hidden_PD) for name in (self.key, self.value))
        key_PHK, value_PHK = (x.view(len(hidden_PD), heads, head_size) for x in (key, value))
        if self.key_norm is not None:
            key_PHK = getattr(attention, self.key_norm)(key_PHK)
        return key_PHK.transpose(0, 1), value_PHK.transpose(0, 1)

    def _widened(self, model: Any, vectors: torch.Tensor) -> torch.Tensor:
        if self.widen is None:
            return vectors
        *path, last = self.widen.split(".")
        holder = attrgetter(".".join(path))(model) if path else model
        return getattr(holder, last)(vectors) if hasattr(holder, last) else vectors


def layer_types(config: Any, count: int = 1) -> list[str]:
    """Return the attention of each layer, full or sliding, as the config lists it; else ``count`` times the same.

    Mistral's config lists none: all of its layers see a window if it has one.
    """
    alike = SLIDING if config.model_type == "mistral" and config.sliding_window is not None else FULL
    return getattr(config, "layer_types", None) or [alike] * count


class RelativeAttention(nn.Module):
    """MPNet's attention through the ``AttentionInterface``; the library computes it in place and takes no prefix."""

    def __init__(self, own: Any, config: Any) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o, self.dropout = own.q, own.k, own.v, own.o, own.dropout
        self.config, self.head_size = config, own.attention_head_size

    def forward(
        self, hidden_BLD: torch.Tensor, attention_mask: torch.Tensor, position_bias: Any = None, **_: Any
    ) -> tuple[torch.Tensor]:
        """Return the output ``(B, L, D)``.

        Args:
            attention_mask: true for visible columns ``(B, 1, 1, P + L)``.
            position_bias: the relative positions' share of the scores ``(1, H, L, L)`` and the layer's prefix or None;
                MPNet's layers pass on this argument alone.
        """
        bias_1HLL, prefix = position_bias
        shape = (*hidden_BLD.shape[:-1], -1, self.head_size)
        query, key, value = (linear(hidden_BLD).view(shape).transpose(1, 2) for linear in (self.q, self.k, self.v))
        # the prompt has no position, hence no bias
        ahead = attention_mask.shape[-1] - bias_1HLL.shape[-1]
        added = nn.functional.pad(bias_1HLL, (ahead, 0)).to(query.dtype)
        added = added.masked_fill(~attention_mask, torch.finfo(query.dtype).min)
        attend: Any = AttentionInterface()[self.config._attn_implementation]
        output_BLHK, _ = attend(
            self, query, key, value, added,
            dropout=self.dropout.p if self.training else 0.0, scaling=1 / math.sqrt(self.head_size), prefix=prefix,
        )  # fmt: skip
        return (self.o(output_BLHK.reshape(hidden_BLD.shape)),)


def _through_interface(model: Any) -> None:
    for layer in model.encoder.layer:
        layer.attention.attn = RelativeAttention(layer.attention.attn, model.config)


_BERT: dict[str, Any] = {"layers": "encoder.layer", "attention": "attention.self", "key": "key", "value": "value"}
# nomic_bert and gte: BERT's embeddings and norms behind each part, rotary positions
_ROTARY: dict[str, Any] = {
    "layers": "layers", "attention": "self_attn", "key": "k_proj", "value": "v_proj", "positions": "rotary",
    "input_norm": None,
}  # fmt: skip
# eurobert and the decoders: nothing between word vectors and the first layer, norms ahead of each part
_NORM_FIRST: dict[str, Any] = _ROTARY | {
    "embeddings": None, "before": "input_layernorm", "last_norm": "norm", "own_pooler": False,
}  # fmt: skip
_DECODER: dict[str, Any] = _NORM_FIRST | {"causal": True, "pooling": "last"}

FAMILIES = (
    Family("bert", ("bert",), positions="columns", mlm_head="bert", **_BERT),
    Family("roberta", ("roberta", "xlm-roberta", "camembert"), positions="after_padding", mlm_head="roberta", **_BERT),
    Family("electra", ("electra",), positions="columns", widen="embeddings_project", own_pooler=False, **_BERT),
    Family(
        "distilbert", ("distilbert",), layers="transformer.layer", attention="attention", key="k_lin", value="v_lin",
        positions="columns", hidden_dropout="dropout", own_pooler=False,
    ),
    Family(
        "mpnet", ("mpnet",), layers="encoder.layer", attention="attention.attn", key="k", value="v",
        positions="after_padding", input_norm=None, relative=True, adapt=_through_interface,
    ),
    Family(
        "albert", ("albert",), layers="encoder.albert_layer_groups", attention="attention", key="key", value="value",
        positions="columns", widen="encoder.embedding_hidden_mapping_in",
    ),
    Family(
        "modernbert", ("modernbert",), layers="layers", attention="attn", key="Wqkv", value="Wqkv", positions="rotary",
        input_norm=None, before="attn_norm", last_norm="final_norm", inclusive=True, hidden_dropout="mlp_dropout",
        own_pooler=False,
    ),
    Family("nomic_bert", ("nomic_bert",), pooling="mean", **_ROTARY),
    Family("gte", ("gte",), stored="encoder.layer", **_ROTARY),
    Family("eurobert", ("eurobert",), pooling="mean", **_NORM_FIRST),
    Family("llama", ("llama", "mistral"), **_DECODER),
    Family("qwen3", ("qwen3",), key_norm="k_norm", **_DECODER),
    Family("gemma3", ("gemma3_text",), key_norm="k_norm", **_DECODER),
)  # fmt: skip
BY_TYPE = {kind: family for family in FAMILIES for kind in family.types}
