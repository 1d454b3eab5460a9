"""Export an encoder as an ONNX graph, pooling included: prompts as constants, or as inputs for a bank.

A layer's attention is one node, which reads the prompt before the tokens: ``fused_attention`` replaces the model's
while ``torch.onnx.export`` traces.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from cse.export.row_updates import RowUpdates
from cse.model.backbone import Backbone, merged
from cse.model.passes import Constants
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.domain import POOLERS

# larger weights go to a file beside the graph: the sessions of a machine map it and share its memory, and a graph file
# is limited to 2 GB
EXTERNAL_DATA_BYTES = 8_000_000
_FUSED_ATTENTION = "cse_onnx"
OPSET = 23  # the first with a standard Attention operator: one node per layer, prefix included
INPUTS, OUTPUT = ("input_ids", "attention_mask"), "sentence_embedding"
Dim = torch.export.Dim
_TABLE, _LIST = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}, {0: Dim.DYNAMIC}


def fused_attention(
    module: nn.Module,
    query_BHLK: Tensor,
    key_BHLK: Tensor,
    value_BHLK: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    prefix: Any = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend with the standard ONNX ``Attention`` operator (opset 23); only for tracing by ``torch.onnx.export``.

    Queries, keys and values are passed as (B, L, D), which leaves no transposition in the graph. A layer's prompt is
    joined to keys and values in front: as past keys and values it would take twice the time on onnxruntime's CPU.

    Args:
        key_BHLK: keys, as many as queries or, grouped, of fewer heads; values are shaped like them.
        attention_mask: (B, 1, 1 or L, P + L), boolean, or (B, H, L, P + L), additive. It is expanded to L rows, because
            onnxruntime's CPU kernel does not broadcast the third axis and fails at run time.
        scaling: factor of the scores; None: ``1 / sqrt(K)``.
        prefix: the layer's keys and values, each (H, P, K) or (B, H, P, K); None for no prompt.

    Returns:
        The layer's output (B, L, H, K), and None instead of the attention weights.
    """
    rows, heads, length, width = query_BHLK.shape

    def flat(states: Tensor) -> Tensor:
        return states.transpose(1, 2).reshape(rows, length, states.shape[1] * width)

    key, value = flat(key_BHLK), flat(value_BHLK)
    if prefix is not None:
        # transposed before it is expanded: of a constant, onnxruntime then keeps the result
        ahead = [states.transpose(-3, -2).flatten(-2).expand(rows, -1, -1) for states in prefix]
        key, value = torch.cat([ahead[0], key], dim=1), torch.cat([ahead[1], value], dim=1)
    if attention_mask is not None:
        attention_mask = attention_mask.expand(rows, -1, length, -1)
    output = torch.onnx.ops.attention(
        flat(query_BHLK),
        key,
        value,
        attention_mask,
        q_num_heads=heads,
        kv_num_heads=key_BHLK.shape[1],
        scale=scaling,
    )[0]
    return output.view(rows, length, heads, width), None


AttentionInterface.register(_FUSED_ATTENTION, fused_attention)


@contextlib.contextmanager
def _fused(backbone: nn.Module) -> Iterator[None]:
    """Let a backbone's model attend with ``fused_attention`` inside the block; word vectors have no attention."""
    if not isinstance(backbone, Backbone):
        yield
        return
    config: Any = backbone.model.config
    before, config._attn_implementation = config._attn_implementation, _FUSED_ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before


class _Inference(nn.Module):
    """The encoder at inference: prefix and template noise are precomputed constants."""

    def __init__(self, encoder: SentenceEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        with torch.no_grad():
            constants = encoder.constants()
        prefix = constants.prefix or []
        self.keys = nn.ParameterList([nn.Parameter(key.clone(), requires_grad=False) for key, _ in prefix])
        self.values = nn.ParameterList([nn.Parameter(value.clone(), requires_grad=False) for _, value in prefix])

        noise = constants.noise_TND
        self.noise = None if noise is None else nn.Parameter(noise.clone(), requires_grad=False)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        prefix = list(zip(self.keys, self.values, strict=True)) or None
        return self.encoder.embed(input_ids, attention_mask, Constants(prefix, self.noise))


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


def write_graph(encoder: SentenceEncoder, path: Path) -> None:
    """Export the encoder as ONNX: ``input_ids`` and ``attention_mask`` int64 ``(batch, length)`` to float32 embeddings.

    The output is ``sentence_embedding (batch, D)``, pooled and not normalised. The graph is traced on a padded batch,
    because a mask of ones would be optimised away and the graph would ignore padding.

    Args:
        path: file to write; weights over ``EXTERNAL_DATA_BYTES`` go to ``path.data`` next to it.
    """
    encoder.eval()
    ids_BL, mask_BL = _sample(len(encoder.templates[0].ids) if encoder.templates else 4, encoder.backbone.pad_id)
    with merged(encoder.backbone), _fused(encoder.backbone):
        _export(_Inference(encoder), {INPUTS[0]: (ids_BL, _TABLE), INPUTS[1]: (mask_BL, _TABLE)}, path)


def write_bank_graph(backbone: Backbone, path: Path, *, adapters: Sequence[str] | None = None) -> None:
    """Export a backbone as ONNX, with prompts as inputs: ``BankPass.forward`` to ``sentence_embedding (batch, D)``.

    Args:
        path: file to write, as in ``write_graph``.
        adapters: of ``BankPass``, where updates of the layers are inputs too; None: they are not.
    """
    ids_BL, mask_BL = _sample(4, backbone.pad_id)
    prompt = torch.zeros((3 * 2 * backbone.layers, backbone.heads, 5, backbone.head_size))
    given = {
        INPUTS[0]: (ids_BL, _TABLE),
        INPUTS[1]: (mask_BL, _TABLE),
        "domain": (torch.tensor([2, 0, 1]), _LIST),
        "prompt": (prompt, {0: Dim.DYNAMIC, 2: Dim.DYNAMIC}),
        "prompt_length": (torch.tensor([5, 3, 0]), _LIST),
        "position_shift": (torch.tensor([5, 0, 0]), _LIST),
        "trained_cls": (torch.tensor([True, False, False]), _LIST),
        "cls": (torch.zeros((3, backbone.word_size)), _LIST),
        "pooling": (torch.tensor([0, 1, 2]), _LIST),
    }
    if adapters is not None:
        widths = RowUpdates(backbone, adapters).widths
        sizes = zip(widths.items(), ((3, 2), (3, 3), (3,)), (_TABLE, _TABLE, _LIST), strict=True)
        given |= {name: (torch.zeros((*size, width)), axes) for (name, width), size, axes in sizes}
    with _fused(backbone):
        _export(BankPass(backbone, adapters).eval(), given, path)


def _sample(shortest: int, pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and mask of three rows, one of them padded."""
    rows, length = 3, shortest + 3
    mask_BL = torch.ones((rows, length), dtype=torch.int64)
    mask_BL[1, shortest:] = 0
    return torch.where(mask_BL == 1, torch.arange(length) % 3 + 5, pad_id), mask_BL


def _export(module: nn.Module, given: dict[str, tuple[torch.Tensor, dict[int, Any]]], path: Path) -> None:
    """Trace a module with the given inputs and their dynamic axes, by name, and write the graph."""
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            module,
            tuple(tensor for tensor, _ in given.values()),
            dynamo=True,
            opset_version=OPSET,
            input_names=list(given),
            output_names=[OUTPUT],
            dynamic_shapes=tuple(axes for _, axes in given.values()),
            external_data=False,
            optimize=True,
        )
        assert program is not None  # noqa: S101 - the dynamo exporter returns a program or raises
        size = sum(weight.numel() * weight.element_size() for weight in module.parameters())
        program.save(str(path), external_data=size > EXTERNAL_DATA_BYTES)
    _tidy(path)


def _tidy(path: Path) -> None:
    """Merge chains of reshapes, drop what nothing reads, and remove the exporter's notes on its own run (source paths,
    line numbers), so that a bundle's bytes depend on the model and the package versions, not on the machine.

    The numbers do not change. Weights in a file beside the graph stay there.
    """
    model = onnx.load(str(path), load_external_data=False)
    graph = model.graph
    _join_reshapes(graph)
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        del part.metadata_props[:]
        part.doc_string = ""
    onnx.save(model, str(path))


def _join_reshapes(graph: onnx.GraphProto) -> None:
    """Let a reshape of a reshape read the first one's input, then drop unused nodes and weights.

    Only target shapes without 0 are merged: 0 copies an axis of the input unless ``allowzero`` is set.
    """
    producers = {output: node for node in graph.node for output in node.output}
    for node in graph.node:
        if node.op_type == "Reshape" and any(a.name == "allowzero" and a.i == 1 for a in node.attribute):
            before = producers.get(node.input[0])
            if before is not None and before.op_type == "Reshape":
                node.input[0] = before.input[0]
    wanted = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):
        if any(output in wanted for output in node.output):
            kept.append(node)
            wanted.update(node.input)
    del graph.node[:]
    graph.node.extend(reversed(kept))
    weights = [weight for weight in graph.initializer if weight.name in wanted]
    del graph.initializer[:]
    graph.initializer.extend(weights)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the exporter's progress lines and deprecation warnings."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
