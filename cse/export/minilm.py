"""The bare MiniLM as a bundle without torch, which with its exporter takes fifteen seconds for the same graph.

`cse index` makes it where nothing was trained. Only the published weights are written so: their architecture is known,
and their vectors are compared with torch's by a test.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file

from cse.artifact import hash_files
from cse.model.backbone_files import MINILM_SHA256, WEIGHTS, BackboneFiles, read_tokenizer
from cse.model.declared import declared_by
from cse.outputs import Kind, publish_folder
from cse.runtime.bundle import FORMAT, MODEL, TOKENIZER, Manifest, documents_identity
from cse.runtime.domain import DOMAIN_FORMAT, DomainFacts, Shape

LAYERS, HEADS, WIDTH, POSITIONS = 6, 12, 384, 512
_OPSET, _IR = 23, 10
_EPSILON = 1e-12  # of its layer norms


def is_minilm(files: BackboneFiles) -> bool:
    """Return whether a backbone is MiniLM as published, and is used as declared there."""
    declared = declared_by(files.folder)
    return files.sha256 == MINILM_SHA256 and declared.pooling == "mean" and not (declared.texts or declared.widths)


def write_minilm(files: BackboneFiles, out: Path) -> None:
    """Write the bundle of a backbone that ``is_minilm``."""
    with publish_folder(out, Kind.BUNDLE) as folder:
        model = _model(load_file(files.folder / WEIGHTS))
        onnx.save(model, str(folder / MODEL), save_as_external_data=True, location=f"{MODEL}.data")
        (folder / f"{MODEL}.data").chmod(0o644)  # onnx lets nobody else read it
        (folder / TOKENIZER).write_text(read_tokenizer(files).to_str(pretty=True), encoding="utf-8", newline="\n")
        source = {"name": files.name, "revision": files.revision, "sha256": files.sha256}
        manifest = Manifest(
            format=FORMAT,
            pad_id=0,
            domain=DomainFacts(
                format=DOMAIN_FORMAT,
                name="model",
                backbone=files.sha256,
                pooler="mean",
                normalize=True,
                position_shift=0,
                max_length=declared_by(files.folder).max_length or POSITIONS,
                width=WIDTH,
                words=WIDTH,
                hashes={},
            ),
            shape=Shape(files.sha256, LAYERS, HEADS, WIDTH // HEADS, WIDTH, WIDTH, POSITIONS),
            files=hash_files(folder, Kind.BUNDLE),
            backbone={**source, "words": None, "width": WIDTH},
        )
        replace(manifest, documents=documents_identity(manifest)).write(folder)


@dataclass
class _Graph:
    """Nodes as they are added, each named by its output, and the constants that they read."""

    weights: Mapping[str, NDArray[Any]]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, NDArray[Any]] = field(default_factory=dict)

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(self, name: str, value: Any) -> str:
        self.constants[name] = np.ascontiguousarray(value)
        return name

    def weight(self, name: str) -> str:
        return self.constant(name, self.weights[name])

    def linear(self, states: str, layer: str) -> str:
        matrix = self.constant(f"{layer}.weight", self.weights[f"{layer}.weight"].T)
        return self.node("Add", self.node("MatMul", states, matrix), self.weight(f"{layer}.bias"))

    def sum_normed(self, one: str, other: str, norm: str) -> str:
        scale, bias = self.weight(f"{norm}.weight"), self.weight(f"{norm}.bias")
        return self.node("LayerNormalization", self.node("Add", one, other), scale, bias, epsilon=_EPSILON)


def _model(weights: Mapping[str, NDArray[Any]]) -> onnx.ModelProto:
    """Return ``input_ids`` and ``attention_mask`` int64 ``(batch, length)`` to ``sentence_embedding (batch, D)``."""
    graph = _Graph(weights)
    node, constant = graph.node, graph.constant
    ids, mask = "input_ids", "attention_mask"
    zero, one, last = constant("zero", [0]), constant("one", [1]), constant("last", [-1])
    rows, length = node("Shape", mask, end=1), node("Shape", mask, start=1)

    words = node("Gather", graph.weight("embeddings.word_embeddings.weight"), ids)
    first_type = constant("token_type", weights["embeddings.token_type_embeddings.weight"][0])
    positions = node("Slice", graph.weight("embeddings.position_embeddings.weight"), zero, length)
    hidden_BLD = graph.sum_normed(node("Add", words, first_type), positions, "embeddings.LayerNorm")

    seen_B11L = node("Unsqueeze", node("Cast", mask, to=TensorProto.BOOL), constant("axes", [1, 2]))
    seen_B1LL = node("Expand", seen_B11L, node("Concat", rows, one, length, length, axis=0))  # no kernel broadcasts it
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        query, key, value = (graph.linear(hidden_BLD, f"{at}.attention.self.{of}") for of in ("query", "key", "value"))
        attended_BLD = node(
            "Attention", query, key, value, seen_B1LL,
            q_num_heads=HEADS, kv_num_heads=HEADS, scale=1 / math.sqrt(WIDTH // HEADS),
        )  # fmt: skip
        mixed_BLD = graph.linear(attended_BLD, f"{at}.attention.output.dense")
        hidden_BLD = graph.sum_normed(mixed_BLD, hidden_BLD, f"{at}.attention.output.LayerNorm")
        wide = node("Gelu", graph.linear(hidden_BLD, f"{at}.intermediate.dense"))
        hidden_BLD = graph.sum_normed(graph.linear(wide, f"{at}.output.dense"), hidden_BLD, f"{at}.output.LayerNorm")

    weight_BL1 = node("Unsqueeze", node("Cast", mask, to=TensorProto.FLOAT), last)
    total_BD = node("ReduceSum", node("Mul", hidden_BLD, weight_BL1), one, keepdims=0)
    count_B1 = node("Max", node("ReduceSum", weight_BL1, one, keepdims=0), constant("least", np.ones(1, np.float32)))
    graph.nodes.append(helper.make_node("Div", [total_BD, count_B1], ["sentence_embedding"]))

    axes = ["batch", "length"]
    made = helper.make_graph(
        graph.nodes,
        "minilm",
        [helper.make_tensor_value_info(name, TensorProto.INT64, axes) for name in (ids, mask)],
        [helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["batch", WIDTH])],
        [numpy_helper.from_array(array, name) for name, array in graph.constants.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
