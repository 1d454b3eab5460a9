"""Round a graph: to float16 for GPUs, half the memory and products on tensor cores, or to 8 bits for CPUs, a quarter of
the memory and products of integers.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx.helper import make_empty_tensor_value_info, make_node
from onnx.numpy_helper import from_array, to_array
from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

CALIBRATED = 256  # own texts that the ranges of activations are read from
_SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # of the difficulty that may move from activations to weights
_LEAST = 1e-2  # of the largest channel: a channel that was silent so far may speak later
_TINY = 1e-30

# sums over many numbers stay in float32: norms and pooling; attention's softmax, see below
_IN_FLOAT32 = ("LayerNormalization", "SimplifiedLayerNormalization", "ReduceSum", "ReduceMean", "Div", "Pow", "Sqrt")
_Given = Mapping[str, NDArray[Any]]
_Range = tuple[np.float32, np.float32]


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


def quantize(path: Path, given: Sequence[_Given]) -> None:
    """Convert a graph in place; its inputs and its output keep their types.

    Products with weights are of integers: each column of weights has its own scale, each tensor of activations one that
    is found here, so that a vector does not depend on the texts beside it. Channels of activations are levelled first
    (SmoothQuant, Xiao et al. 2023, equations 3 and 4), by the share that rounds best. Weights take 7 of their 8 bits:
    without VNNI, a processor adds two products in 16 bits. Attention, norms, softmax and pooling sums stay in float32.

    Args:
        given: its inputs for some texts, each alone: what padding computes would widen the ranges.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static  # slow, and few need it

    class Texts(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter(given[:1])  # ranges are known; it asks for a text all the same

        def get_next(self) -> _Given | None:
            return next(self.left, None)

    external = path.with_name(f"{path.name}.data").exists()
    log = logging.getLogger()
    level = log.level
    log.setLevel(logging.ERROR)  # it recommends a pass over the graph that has been done
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as place:
            watched, levelled, made = (Path(place) / name / path.name for name in ("watched", "levelled", "made"))
            made.parent.mkdir()
            model = onnx.load(path)
            seen = _watch(model, given, watched)
            ranges = _level(model, seen)
            _save(model, levelled)
            quantize_static(
                levelled,
                made,
                Texts(),
                op_types_to_quantize=["MatMul"],
                per_channel=True,
                reduce_range=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                use_external_data_format=external,
                extra_options={
                    "MatMulConstBOnly": True,
                    "OpTypesToExcludeOutputQuantization": ["MatMul"],
                    "QDQOpTypePerChannelSupportToAxis": {"MatMul": 1},
                    "TensorQuantOverrides": {
                        name: [{"rmin": low, "rmax": high}] for name, (low, high) in ranges.items()
                    },
                },
            )
            for file in made.parent.iterdir():
                file.chmod(path.stat().st_mode)  # onnx lets only its owner read a file of weights
                file.replace(path.with_name(file.name))
    finally:
        log.setLevel(level)


def _products(model: onnx.ModelProto) -> list[tuple[onnx.NodeProto, onnx.TensorProto]]:
    """Return each product of activations with weights (in, out), and its weights."""
    weights = {tensor.name: tensor for tensor in model.graph.initializer if len(tensor.dims) == 2}
    return [
        (node, weights[node.input[1]])
        for node in model.graph.node
        if node.op_type == "MatMul" and node.input[1] in weights
    ]


@dataclass
class _Seen:
    """What is multiplied with weights: extremes of each channel (in), and a row of each text (texts, in)."""

    low: NDArray[np.float32]
    high: NDArray[np.float32]
    rows: NDArray[np.float32]


def _watch(model: onnx.ModelProto, given: Sequence[_Given], path: Path) -> dict[str, _Seen]:
    """Run a graph, and return what its products are given, by name."""
    names = sorted({node.input[0] for node, _ in _products(model)})
    count = len(model.graph.output)
    model.graph.output.extend(make_empty_tensor_value_info(name) for name in names)
    _save(model, path)
    del model.graph.output[count:]
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    random, found = np.random.default_rng(0), {name: list[NDArray[np.float32]]() for name in names}
    for inputs in given:
        for name, values in zip(names, session.run(names, dict(inputs)), strict=True):
            flat = values.reshape(-1, values.shape[-1])
            found[name].append(np.stack([flat.min(axis=0), flat.max(axis=0), flat[random.integers(len(flat))]]))
    stacked = {name: np.stack(each) for name, each in found.items()}
    return {name: _Seen(each[:, 0].min(axis=0), each[:, 1].max(axis=0), each[:, 2]) for name, each in stacked.items()}


def _level(model: onnx.ModelProto, seen: Mapping[str, _Seen]) -> dict[str, _Range]:
    """Divide channels of activations by factors that multiply the rows of their weights; the output stays the same.

    Weights that are read more than once (ALBERT's layers), and all that they are multiplied with, share their factors.

    Returns:
        The lowest and the highest number of each levelled tensor.
    """
    ranges: dict[str, _Range] = {}
    products = _products(model)
    group = {name: name for name in seen}  # activations by name; one of each group stands for it
    first: dict[str, str] = {}
    for node, weights in products:
        old, new = group[node.input[0]], group[first.setdefault(weights.name, node.input[0])]
        group = {name: new if of == old else of for name, of in group.items()}
    factors = {}
    for each in set(group.values()):
        own = {weights.name: to_array(weights) for node, weights in products if group[node.input[0]] == each}
        factors[each] = _factors([one for name, one in seen.items() if group[name] == each], list(own.values()))
    for weights in {weights.name: weights for _, weights in products}.values():
        rows_of = factors[group[first[weights.name]]]
        weights.CopyFrom(from_array(to_array(weights) * rows_of[:, None], weights.name))
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node, _ in products:
        readers.setdefault(node.input[0], []).append(node)
    for name, nodes in readers.items():
        by, levelled = f"{name}_factors", f"{name}_levelled"
        low, high = (edge / factors[group[name]] for edge in (seen[name].low, seen[name].high))
        ranges[levelled] = low.min(initial=0), high.max(initial=0)
        model.graph.initializer.append(from_array(1 / factors[group[name]], by))
        ends = {node.output[0] for node in nodes}
        place = next(index for index, node in enumerate(model.graph.node) if node.output[0] in ends)
        model.graph.node.insert(place, make_node("Mul", [name, by], [levelled], name=levelled))
        for node in nodes:
            node.input[0] = levelled
    return ranges


def _factors(seen: Sequence[_Seen], weights: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return the factors (in) whose rounded products of the watched rows are nearest to the exact ones.

    Each row counts by its own size: some models have a token that is a hundred times as large as the others.
    """
    low, high = np.min([one.low for one in seen], axis=0), np.max([one.high for one in seen], axis=0)
    rows = np.concatenate([one.rows for one in seen])
    exact = [rows @ matrix for matrix in weights]
    loud = _at_least(np.maximum(-low, high))
    heavy = _at_least(np.max([np.abs(matrix).max(axis=1) for matrix in weights], axis=0))

    def error(factors: NDArray[np.float32]) -> float:
        step = (max((high / factors).max(), 0) - min((low / factors).min(), 0)) / 255
        rounded = np.round(rows / factors / step) * step
        total = 0.0
        for matrix, wanted in zip(weights, exact, strict=True):
            levelled = matrix * factors[:, None]
            steps = np.abs(levelled).max(axis=0).clip(_TINY) / 64
            wrong = rounded @ (np.round(levelled / steps) * steps) - wanted
            total += float((np.square(wrong).sum(axis=1) / np.square(wanted).sum(axis=1).clip(_TINY)).mean())
        return total

    tried = [np.ones_like(loud)]
    for share in _SHARES:
        factors = np.exp(share * np.log(loud) - (1 - share) * np.log(heavy))
        tried.append((factors / np.exp(np.log(factors).mean())).astype(np.float32))
    return min(tried, key=error)


def _at_least(sizes: NDArray[np.float32]) -> NDArray[np.float32]:
    return sizes.clip(max(_LEAST * float(sizes.max()), _TINY))


def _save(model: onnx.ModelProto, path: Path) -> None:
    path.parent.mkdir()
    copy = onnx.ModelProto()
    copy.CopyFrom(model)  # saving moves the weights out of the model
    onnx.save(copy, path, save_as_external_data=True, location=f"{path.name}.data")  # 2 GB and more
