"""Encode the same texts with somebody else's software, round by round; run by the Python of its environment.

    .venv-peers/bin/python benchmarks/peers/encoders.py onnx-fp32 FOLDER --texts texts.json

Loads the model, tries the batch sizes and keeps the fastest, prints a line of JSON, and then answers each line of
stdin with one: ``go`` encodes all texts and answers the seconds, ``save PATH`` writes the last vectors. It imports
nothing of this project, which need not be installed here.
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
from pathlib import Path
from typing import Any

import numpy as np

BATCH_SIZES = {"cpu": (16, 32, 64, 128, 256), "cuda": (64, 256, 512, 1024)}
TRIAL = {"cpu": 512, "cuda": 4096}  # texts
_PACKAGES = (
    "sentence-transformers", "torch", "transformers", "optimum-onnx", "optimum-intel", "onnxruntime", "openvino",
    "fastembed",
)  # fmt: skip
Encode = Callable[[list[str], int], np.ndarray]


def _sentence_transformers(folder: str, device: str, **options: Any) -> Encode:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, device=device, **options)
    return lambda texts, size: model.encode(texts, batch_size=size, show_progress_bar=False)


def _torch(folder: str, device: str, dtype: str, attention: str = "sdpa") -> Encode:
    # above float32, its vectors stay in the model's precision unless they are numpy's, which knows no bfloat16
    return _sentence_transformers(folder, device, model_kwargs={"dtype": dtype, "attn_implementation": attention})


def _onnx(folder: str, device: str, quantize: bool = False) -> Encode:
    """Its ONNX back end: the graph fused (O3), or quantised to int8."""
    import sentence_transformers as library

    provider = {"provider": "CUDAExecutionProvider" if device == "cuda" else "CPUExecutionProvider"}
    place = tempfile.mkdtemp(prefix="peer-onnx-")  # deleted with the process's temporary folder
    model = library.SentenceTransformer(folder, device=device, backend="onnx", model_kwargs=provider | {"export": True})
    model.save_pretrained(place)
    if quantize:
        library.export_dynamic_quantized_onnx_model(model, "avx512_vnni", place)
        name = "onnx/model_qint8_avx512_vnni.onnx"
    else:
        library.export_optimized_onnx_model(model, "O3", place)
        name = "onnx/model_O3.onnx"
    return _sentence_transformers(place, device, backend="onnx", model_kwargs=provider | {"file_name": name})


def _openvino(folder: str, device: str, precision: str) -> Encode:
    settings = {"export": True, "ov_config": {"INFERENCE_PRECISION_HINT": precision}}
    return _sentence_transformers(folder, device, backend="openvino", model_kwargs=settings)


def _fastembed(folder: str, device: str) -> Encode:
    """Fastembed with the same model as ONNX; it does not sort by length, so that is done for it."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType
    from sentence_transformers import SentenceTransformer

    place = tempfile.mkdtemp(prefix="peer-fastembed-")
    exported = SentenceTransformer(folder, device="cpu", backend="onnx", model_kwargs={"export": True})
    exported.save_pretrained(place)
    TextEmbedding.add_custom_model(
        model="peer",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf="peer/peer"),
        dim=exported.get_sentence_embedding_dimension(),
        model_file="onnx/model.onnx",
    )
    model = TextEmbedding("peer", specific_model_path=place, cuda=device == "cuda")

    def encode(texts: list[str], size: int) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
        vectors = np.stack(list(model.embed([texts[at] for at in order], batch_size=size)))
        found = np.empty_like(vectors)
        found[order] = vectors
        return found

    return encode


KINDS: dict[str, Callable[[str, str], Encode]] = {
    "torch-fp32": lambda folder, device: _torch(folder, device, "float32"),
    "torch-bf16": lambda folder, device: _torch(folder, device, "bfloat16"),
    "torch-fp16": lambda folder, device: _torch(folder, device, "float16"),
    "flash-fp16": lambda folder, device: _torch(folder, device, "float16", "flash_attention_2"),
    "onnx-fp32": _onnx,
    "onnx-int8": lambda folder, device: _onnx(folder, device, quantize=True),
    "openvino-fp32": lambda folder, device: _openvino(folder, device, "f32"),
    "openvino-bf16": lambda folder, device: _openvino(folder, device, "bf16"),
    "fastembed-fp32": _fastembed,
}


def fastest(encode: Encode, texts: list[str], device: str) -> tuple[int, dict[int, float]]:
    """Return the best batch size, and texts per second by batch size."""
    encode(texts[:64], 32)
    rates = {}
    texts = texts[: TRIAL[device]]
    for size in BATCH_SIZES[device]:
        start = time.perf_counter()
        encode(texts, size)
        rates[size] = len(texts) / (time.perf_counter() - start)
    return max(rates, key=lambda size: rates[size]), rates


def main() -> None:
    """Load, warm up, then answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("folder", help="of a sentence-transformers model")
    parser.add_argument("--texts", type=Path, required=True, help="JSON: a list of texts")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer

    def say(**values: Any) -> None:
        print(json.dumps(values), file=answers, flush=True)

    texts = json.loads(options.texts.read_text(encoding="utf-8"))
    encode = KINDS[options.kind](options.folder, options.device)
    size, rates = fastest(encode, texts, options.device)
    say(batch_size=size, texts_per_s_of_batch_sizes=rates, versions=_versions())
    vectors = np.empty(0)
    for line in sys.stdin:
        command, _, path = line.strip().partition(" ")
        start = time.perf_counter()
        if command == "go":
            vectors = encode(texts, size)
            say(seconds=time.perf_counter() - start)
        else:
            np.save(path, vectors.astype(np.float32))
            say(saved=path)


def _versions() -> dict[str, str]:
    found = {each.metadata["Name"].lower(): each.version for each in importlib.metadata.distributions()}
    return {name: found[name] for name in _PACKAGES if name in found}


if __name__ == "__main__":
    main()
