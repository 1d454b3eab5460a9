"""Round a graph's weights to 8 bits, for CPUs: a quarter of the memory, and products of integers."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from cse.runtime.providers import open_session

# Texts to see a graph's activations on. A model's few huge ones are at the same places whatever it reads ("Massive
# Activations in Large Language Models", Sun et al. 2024).
SAMPLE = (
    "A man is playing a guitar.",
    "Where is my card?",
    "The committee, which had met on Tuesday, postponed its decision until the figures were complete.",
    "Heat transfer from a flat plate to a fluid at high speed, and its dependence on the state of the boundary layer.",
)
# Largest error of a token's product, as a share of it, that an integer product may have. In MPNet-base it is 0.34 to
# 0.62 in five products of 72, and 0.10 in the next; in MiniLM at most
# 0.17.
MOST_LOST = 0.2


def quantize(path: Path, given: Mapping[str, NDArray[Any]]) -> None:
    """Convert a graph in place; its inputs and its output keep their types.

    Products with weights are of integers: each column of weights has its own scale, each batch of activations one that
    is found when it runs. Attention, norms, softmax and pooling sums stay in float32, and so does a product whose
    activations one scale does not fit: where a few are so large that little is left of all others.

    Args:
        path: the graph.
        given: its inputs by name for a few texts, such as ``SAMPLE``; further ones are not read.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic  # slow to import, and few need it

    external = path.with_name(f"{path.name}.data").exists()
    log = logging.getLogger()
    level = log.level
    log.setLevel(logging.ERROR)  # it recommends a pass over the graph that has been done
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            quantize_dynamic(
                path,
                made,
                per_channel=True,
                weight_type=QuantType.QUInt8,  # without VNNI, signed weights overflow the 16 bits of a sum
                op_types_to_quantize=["MatMul"],
                nodes_to_exclude=[name for name, lost in lost_by_product(path, given) if lost > MOST_LOST],
                use_external_data_format=external,
            )
            for file in Path(folder).iterdir():
                file.chmod(path.stat().st_mode)  # onnx lets only its owner read a file of weights
                file.replace(path.with_name(file.name))
    finally:
        log.setLevel(level)


def lost_by_product(path: Path, given: Mapping[str, NDArray[Any]]) -> Iterator[tuple[str, float]]:
    """Yield the name of each product with weights in a graph, and what rounding its activations costs.

    The cost is the error of a row of the product over that row's length, of the row in the middle: one length for all
    rows would hide that most of them are lost, beside a few very long ones.

    Args:
        path: a graph in float32.
        given: see ``quantize``.
    """
    model = onnx.load(str(path))
    weights = {weight.name: weight for weight in model.graph.initializer}
    products = [node for node in model.graph.node if node.op_type == "MatMul" and node.input[1] in weights]
    read = list(dict.fromkeys(node.input[0] for node in products))
    shown = onnx.load(str(path), load_external_data=False)
    shown.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        for name in read
        if name not in {value.name for value in shown.graph.output}
    )
    seen = path.with_name(f"seen-{path.name}")  # beside the file of its weights
    try:
        onnx.save(shown, str(seen))
        session = open_session(seen, "cpu").session
        inputs = {value.name: given[value.name] for value in session.get_inputs()}
        states = dict(zip(read, session.run(read, inputs), strict=True)) if read else {}
    finally:
        seen.unlink(missing_ok=True)
    real = np.asarray(given["attention_mask"]).reshape(-1) > 0
    for node in products:
        rows = states[node.input[0]].reshape(-1, states[node.input[0]].shape[-1])
        errors = _rounded(rows) - rows
        if len(rows) == len(real):  # not after the pooling
            rows, errors = rows[real], errors[real]
        weight = numpy_helper.to_array(weights[node.input[1]])
        length = np.linalg.norm(rows @ weight, axis=1)
        yield node.name, float(np.median(np.linalg.norm(errors @ weight, axis=1) / np.maximum(length, 1e-12)))


def _rounded(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return numbers as they are after ONNX's ``DynamicQuantizeLinear``: 256 steps from the least to the greatest."""
    least, greatest = min(values.min(), 0.0), max(values.max(), 0.0)
    step = np.float32((greatest - least) / 255 or 1.0)
    zero = np.round(-least / step)
    return ((np.clip(np.round(values / step) + zero, 0, 255) - zero) * step).astype(np.float32)
