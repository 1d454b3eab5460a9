"""Round a graph's weights and products to float16, for GPUs: half the memory, and matrix products on tensor cores."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

# sums over many numbers stay in float32: norms and pooling; attention's softmax, see below
_IN_FLOAT32 = ("LayerNormalization", "SimplifiedLayerNormalization", "ReduceSum", "ReduceMean", "Div", "Pow", "Sqrt")


def halve(path: Path) -> None:
    """Convert a graph in place; its inputs and its output keep their types."""
    model = onnx.load(str(path))
    half = convert_float_to_float16(
        model, keep_io_types=True, disable_shape_infer=True, op_block_list=[*DEFAULT_OP_BLOCK_LIST, *_IN_FLOAT32]
    )
    for node in half.graph.node:
        if node.op_type == "Attention":
            node.attribute.append(onnx.helper.make_attribute("softmax_precision", onnx.TensorProto.FLOAT))
    _drop_repeated(half.graph)
    data = path.with_name(f"{path.name}.data")
    beside = data.is_file()
    data.unlink(missing_ok=True)  # onnx would append to it
    onnx.save(half, str(path), save_as_external_data=beside, location=data.name)
    if beside:
        data.chmod(path.stat().st_mode)  # onnx lets only its owner read it


def _drop_repeated(graph: onnx.GraphProto) -> None:
    """Keep one of the casts that the converter adds for every reader of a weight."""
    kept = {tuple(node.output): node for node in reversed(graph.node)}
    nodes = [node for node in graph.node if kept[tuple(node.output)] is node]
    del graph.node[:]
    graph.node.extend(nodes)
