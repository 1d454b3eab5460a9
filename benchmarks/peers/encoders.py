"""Encode the same texts with somebody else's software, round by round; run by the Python of its environment.

    .venv-peers/bin/python benchmarks/peers/encoders.py onnx-fp32 FOLDER --texts texts.json

Loads the model, tries the ways to run it and the batch sizes, keeps the fastest, prints a line of JSON, and then
answers each line of stdin, JSON too, with one. A line names the file that vectors are written ``to``, and may name
other ``texts``, each of which may be encoded ``alone``; the answer is the seconds. It imports nothing of this project,
which need not be installed here.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

BATCH_SIZES = {"cpu": (16, 32, 64, 128, 256), "cuda": (64, 256, 512, 1024)}
TRIAL = {"cpu": 256, "cuda": 4096}  # texts
_PACKAGES = (
    "sentence-transformers", "torch", "transformers", "optimum-onnx", "optimum-intel", "onnxruntime", "openvino",
    "nncf", "fastembed", "model2vec",
)  # fmt: skip
Encode = Callable[[list[str], int], np.ndarray]
Ways = dict[str, Callable[[], Encode]]  # by name; each is loaded when it is tried
ONE_WAY = "as it is"


@dataclass(frozen=True)
class Given:
    """What a peer is made from; the ranges of activations are read from the texts for calibration."""

    folder: str
    device: str
    calibration: list[str]


def _encode_with(model: Any) -> Encode:
    return lambda texts, size: model.encode(texts, batch_size=size, show_progress_bar=False)


def _torch(given: Given, dtype: str, attention: str = "sdpa", compiled: bool = False) -> Ways:
    import sentence_transformers
    import torch

    # above float32, its vectors stay in the model's precision unless they are numpy's, which knows no bfloat16
    settings = {"dtype": dtype, "attn_implementation": attention}
    model = sentence_transformers.SentenceTransformer(given.folder, device=given.device, model_kwargs=settings)
    if compiled:
        # the library calls ``forward``, which nn.Module.compile leaves as it is; frozen weights may be repacked
        inner: Any = model[0].auto_model
        inner.forward = torch.compile(inner.forward, dynamic=True, options={"freezing": True})
    return {ONE_WAY: lambda: _encode_with(model)}


def _exported(given: Given, backend: str, **settings: Any) -> tuple[Any, str]:
    """Return a model of another back end, and its folder, which goes with the process's temporary one."""
    import sentence_transformers

    place, export = tempfile.mkdtemp(prefix="peer-"), {"export": True, **settings}
    model = sentence_transformers.SentenceTransformer(given.folder, device="cpu", backend=backend, model_kwargs=export)
    model.save_pretrained(place)
    return model, place


def _onnx(given: Given, quantize: bool = False) -> Ways:
    """Its ONNX back end: the graph fused (O3), or quantised to int8."""
    import sentence_transformers as library

    provider = {"provider": "CPUExecutionProvider"}
    model, place = _exported(given, "onnx", **provider)
    if quantize:
        library.export_dynamic_quantized_onnx_model(model, "avx512_vnni", place)
        name = "onnx/model_qint8_avx512_vnni.onnx"
    else:
        library.export_optimized_onnx_model(model, "O3", place)
        name = "onnx/model_O3.onnx"
    named = provider | {"file_name": name}
    made = library.SentenceTransformer(place, device="cpu", backend="onnx", model_kwargs=named)
    return {ONE_WAY: lambda: _encode_with(made)}


def _openvino(given: Given, precision: str, quantize: bool = False) -> Ways:
    """Its OpenVINO back end, with the hint for latency, with that for throughput, and with a stream for each core.

    ``quantize`` rounds to int8 with scales found for the calibration texts (NNCF).
    """
    import sentence_transformers as library

    model, place = _exported(given, "openvino")
    name = "openvino/openvino_model.xml"
    if quantize:
        from optimum.intel import OVQuantizationConfig

        rows = Path(place) / "calibration"
        rows.mkdir()
        (rows / "train.json").write_text("\n".join(json.dumps({"text": text}) for text in given.calibration))
        library.export_static_quantized_openvino_model(
            model,
            OVQuantizationConfig(num_samples=len(given.calibration)),
            place,
            dataset_name=str(rows),
            dataset_config_name="default",
            dataset_split="train",
            column_name="text",
        )
        name = "openvino/openvino_model_qint8_quantized.xml"

    cores = len(os.sched_getaffinity(0))

    def load(compiled: bool = True, **settings: Any) -> Any:
        options: dict[str, Any] = {"file_name": name, "ov_config": {"INFERENCE_PRECISION_HINT": precision, **settings}}
        options |= {} if compiled else {"compile": False}
        return library.SentenceTransformer(place, device="cpu", backend="openvino", model_kwargs=options)

    def streams() -> Encode:
        # compiled once: of two models with a thread each, both would be pinned to the first core
        shared = load(NUM_STREAMS=cores, INFERENCE_NUM_THREADS=cores)[0].auto_model
        shared.compile()
        copies = [load(compiled=False) for _ in range(cores)]
        for each in copies:
            each[0].auto_model.request = shared.request.create_infer_request().infer
        return side_by_side([_encode_with(each) for each in copies])

    return {
        "hint for latency": lambda: _encode_with(load(PERFORMANCE_HINT="LATENCY")),
        "hint for throughput": lambda: _encode_with(load(PERFORMANCE_HINT="THROUGHPUT")),
        "a stream for each core": streams,
    }


def side_by_side(copies: list[Encode]) -> Encode:
    """Return an encoder that gives each copy its share of the texts, as many long ones as the others, at once."""

    def encode(texts: list[str], size: int) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
        shares = [share for first in range(len(copies)) if (share := order[first :: len(copies)])]
        with ThreadPoolExecutor(len(shares)) as pool:
            parts = pool.map(lambda copy, share: copy([texts[at] for at in share], size), copies, shares)
            return _in_order(np.concatenate(list(parts)), [at for share in shares for at in share])

    return encode


def _in_order(vectors: np.ndarray, order: list[int]) -> np.ndarray:
    found = np.empty_like(vectors)
    found[order] = vectors
    return found


def _fastembed(given: Given) -> Ways:
    """Fastembed with the same model as ONNX; it does not sort by length, so that is done for it."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    exported, place = _exported(given, "onnx")
    TextEmbedding.add_custom_model(
        model="peer",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf="peer/peer"),
        dim=exported.get_sentence_embedding_dimension(),
        model_file="onnx/model.onnx",
    )
    model = TextEmbedding("peer", specific_model_path=place)

    def encode(texts: list[str], size: int) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
        vectors = np.stack(list(model.embed([texts[at] for at in order], batch_size=size)))
        return _in_order(vectors, order)

    return {ONE_WAY: lambda: encode}


def _model2vec(given: Given) -> Ways:
    """A table of word pieces distilled from the model, with its defaults: no context, 256 dimensions."""
    from model2vec.distill import distill

    model = distill(given.folder, device="cpu")
    return {ONE_WAY: lambda: lambda texts, size: model.encode(texts, batch_size=size)}


KINDS: dict[str, Callable[[Given], Ways]] = {
    "torch-fp32": lambda given: _torch(given, "float32"),
    "torch-bf16": lambda given: _torch(given, "bfloat16"),
    "torch-fp16": lambda given: _torch(given, "float16"),
    "flash-fp16": lambda given: _torch(given, "float16", "flash_attention_2"),
    "compile-fp32": lambda given: _torch(given, "float32", compiled=True),
    "compile-bf16": lambda given: _torch(given, "bfloat16", compiled=True),
    "onnx-fp32": _onnx,
    "onnx-int8": lambda given: _onnx(given, quantize=True),
    "openvino-fp32": lambda given: _openvino(given, "f32"),
    "openvino-bf16": lambda given: _openvino(given, "bf16"),
    "openvino-int8": lambda given: _openvino(given, "f32", quantize=True),
    "fastembed-fp32": _fastembed,
    "model2vec-static": _model2vec,
}


Rates = dict[str, dict[int, float]]  # texts per second by way and batch size


def fastest(ways: Ways, texts: list[str], device: str) -> tuple[Encode, str, int, Rates]:
    """Try all ways with all batch sizes; two are loaded at a time, as copies take gigabytes."""
    best: tuple[float, Encode, str, int] | None = None
    rates: Rates = {}
    texts = texts[: TRIAL[device]]
    for way, load in ways.items():
        encode = load()
        encode(texts[:64], 32)
        rates[way] = {}
        for size in BATCH_SIZES[device]:
            start = time.perf_counter()
            encode(texts, size)
            rates[way][size] = rate = len(texts) / (time.perf_counter() - start)
            best = best if best and best[0] >= rate else (rate, encode, way, size)
    if best is None:
        raise AssertionError
    return *best[1:], rates


def main() -> None:
    """Load, warm up, then answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("folder", help="of a sentence-transformers model")
    parser.add_argument("--texts", type=Path, required=True, help="JSON: a list of texts")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--calibrated", type=int, default=256, help="first texts that int8 is calibrated on")
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer

    def say(**values: Any) -> None:
        print(json.dumps(values), file=answers, flush=True)

    texts = json.loads(options.texts.read_text(encoding="utf-8"))
    ways = KINDS[options.kind](Given(options.folder, options.device, texts[: options.calibrated]))
    encode, way, size, rates = fastest(ways, texts, options.device)
    installed = {each.metadata["Name"].lower(): each.version for each in importlib.metadata.distributions()}
    versions = {name: installed[name] for name in _PACKAGES if name in installed}
    say(way=way, batch_size=size, texts_per_s=rates, versions=versions)
    for line in sys.stdin:
        asked = json.loads(line)
        given = json.loads(Path(asked["texts"]).read_text(encoding="utf-8")) if "texts" in asked else texts
        start = time.perf_counter()
        alone = asked.get("alone", False)
        vectors = np.concatenate([encode([text], 1) for text in given]) if alone else encode(given, size)
        seconds = time.perf_counter() - start
        np.save(asked["to"], vectors.astype(np.float32))
        say(seconds=seconds)


if __name__ == "__main__":
    main()
