"""Round a graph's weights to 8 bits, for CPUs: a quarter of the memory, and products of integers."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path


def quantize(path: Path) -> None:
    """Convert a graph in place; its inputs and its output keep their types.

    Products with weights are of integers: each column of weights has its own scale, each batch of activations one that
    is found when it runs. Attention, norms, softmax and pooling sums stay in float32.
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
                use_external_data_format=external,
            )
            for file in Path(folder).iterdir():
                file.chmod(path.stat().st_mode)  # onnx lets only its owner read a file of weights
                file.replace(path.with_name(file.name))
    finally:
        log.setLevel(level)
