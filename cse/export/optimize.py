"""Speed up the exported graph: one attention node per layer, which reads the prompt before the tokens.

``fused_attention`` replaces the model's attention function while ``torch.onnx.export`` traces (inside
``fused(model)``), and ``optimize`` finishes the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn
from transformers import AttentionInterface

FUSED_ATTENTION = "cse_onnx"
_ATTENTION = {
    ("", "Attention"),
    ("com.microsoft", "Attention"),
    ("com.microsoft", "MultiHeadAttention"),
    ("com.microsoft", "PackedMultiHeadAttention"),
}


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
        module: the attention module; not used.
        key_BHLK: keys, as many as queries or, grouped, of fewer heads.
        value_BHLK: values, shaped like the keys.
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


AttentionInterface.register(FUSED_ATTENTION, fused_attention)


@contextmanager
def fused(model: Any) -> Iterator[None]:
    """Let a backbone's model attend with ``fused_attention`` inside the block."""
    config: Any = getattr(model.model, "config", None)
    if config is None:  # word vectors have no attention
        yield
        return
    before = config._attn_implementation
    config._attn_implementation = FUSED_ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before


def optimize(source: Path | str, target: Path | str) -> None:
    """Merge chains of reshapes, drop what nothing reads, and remove the exporter's notes on its own run (source paths,
    line numbers), so that a bundle's bytes depend on the model and the package versions, not on the machine.

    The numbers do not change. ``target`` may be ``source``. Weights in a ``.data`` file stay there: the target then
    needs that file next to it under the same name.
    """
    model = onnx.load(str(source), load_external_data=False)
    graph = model.graph
    _join_reshapes(graph)
    _drop_notes(model)
    onnx.save(model, str(target))


def attention_nodes(path: Path | str) -> int:
    """Count the fused attention nodes of a graph; fewer than one per layer means that fusing failed."""
    graph = onnx.load(str(path), load_external_data=False).graph
    return sum((node.domain, node.op_type) in _ATTENTION for node in graph.node)


def _drop_notes(model: onnx.ModelProto) -> None:
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        del part.metadata_props[:]
        part.doc_string = ""


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
