"""Run the graphs of bundles with onnxruntime and with OpenVINO: whether another runtime would pay for the same graph.

    .venv-peers/bin/python benchmarks/peers/runtimes.py BUNDLE [BUNDLE ...] --texts texts.json

Each runs the same batches on one thread, sorted by length, in interleaved rounds; texts per second are of the
processor's time. Cosines are with the first bundle in onnxruntime. ``alone`` is how far vectors of unit length are from
those of the same texts alone. It imports nothing of this project, which need not be installed here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import openvino
from tokenizers import Tokenizer

BATCH_TOKENS = 384  # those of OnnxEncoder on a CPU
ALONE = 64  # texts
Run = Callable[[dict[str, np.ndarray]], np.ndarray]
PRECISIONS = ("f32", "bf16")  # of what the graph leaves in float32


def with_onnxruntime(graph: Path) -> Run:
    """Return a session of one thread, as a function."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    return lambda given: session.run(None, given)[0]


def with_openvino(graph: Path, precision: str) -> Run:
    """Return a request of one thread, as a function."""
    core: Any = openvino.Core()
    settings = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
    request = core.compile_model(core.read_model(graph), "CPU", settings).create_infer_request()
    return lambda given: request.infer(given, share_inputs=True)[0]


def batches_of(ids: list[list[int]]) -> list[tuple[list[int], dict[str, np.ndarray]]]:
    """Return batches of texts of similar length: which texts, and what a graph is given."""
    groups: list[list[int]] = [[]]
    for at in sorted(range(len(ids)), key=lambda at: len(ids[at])):
        if groups[-1] and (len(groups[-1]) + 1) * len(ids[at]) > BATCH_TOKENS:
            groups.append([])
        groups[-1].append(at)
    return [(group, given([ids[at] for at in group])) for group in groups]


def given(rows: list[list[int]]) -> dict[str, np.ndarray]:
    """Return ids and mask (n, length) of a batch."""
    found = {name: np.zeros((len(rows), max(map(len, rows))), np.int64) for name in ("input_ids", "attention_mask")}
    for at, row in enumerate(rows):
        found["input_ids"][at, : len(row)] = row
        found["attention_mask"][at, : len(row)] = 1
    return found


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return vectors (n, d) of unit length."""
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def main() -> None:
    """Print a line for each way to run a graph."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="+", type=Path, metavar="BUNDLE")
    parser.add_argument("--texts", type=Path, required=True, help="JSON: a list of texts")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(options.bundles[0] / "tokenizer.json"))
    tokenizer.no_padding()
    ids = [found.ids for found in tokenizer.encode_batch(json.loads(options.texts.read_text(encoding="utf-8")))]
    batches = batches_of(ids)
    ways: dict[str, Run] = {}
    for bundle in options.bundles:
        graph = bundle / "model.onnx"
        ways[f"{bundle.name}, onnxruntime"] = with_onnxruntime(graph)
        ways |= {f"{bundle.name}, OpenVINO {each}": with_openvino(graph, each) for each in PRECISIONS}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    vectors: dict[str, np.ndarray] = {}
    for _ in range(options.rounds):
        for name, run in ways.items():
            start = time.process_time()
            parts = [run(each) for _, each in batches]
            rates[name].append(len(ids) / (time.process_time() - start))
            vectors[name] = unit(np.concatenate(parts)[np.argsort([at for group, _ in batches for at in group])])
    exact = next(iter(vectors.values()))
    for name, run in ways.items():
        cosines = (vectors[name] * exact).sum(axis=1, dtype=np.float64)
        alone = np.abs(unit(np.concatenate([run(given([row])) for row in ids[:ALONE]])) - vectors[name][:ALONE]).max()
        print(
            f"{name}: {statistics.median(rates[name]):,.0f} texts/s ({min(rates[name]):,.0f}-{max(rates[name]):,.0f}), "
            f"cosine {cosines.mean():.5f} (least {cosines.min():.5f}), alone {alone:.1e}"
        )


if __name__ == "__main__":
    main()
