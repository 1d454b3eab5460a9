"""Write a bundle as a folder that transformers.js loads, in a browser or in node.

Its pipeline ``feature-extraction`` pools what a graph calls ``last_hidden_state`` (B, L, D). A bundle's graph pools by
itself, so every token gets the vector of its text, and each pooling that the library offers returns that vector.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx.helper import make_tensor_value_info
from onnx.numpy_helper import from_array
from onnx.parser import parse_node
from tokenizers import Tokenizer

from cse.artifact import read_object, write_sealed
from cse.errors import CseError
from cse.export.bank import SENTENCES
from cse.files import write_json
from cse.outputs import Kind, check_folder, publish_folder
from cse.runtime.bank import meaning_of
from cse.runtime.bundle import MODEL, TOKENIZER, Manifest
from cse.runtime.encode import unit_rows
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.tokens import Tokenizers, pad, plain_copy

TOOL = "transformers.js"
# of a precision: the library's word for it, and how the name of its graph ends
_PRECISIONS = {"fp32": ("fp32", ""), "fp16": ("fp16", "_fp16"), "int8": ("q8", "_quantized")}
_MOST = 2_000_000_000  # bytes of a graph in one file, and about those of a browser's buffer
# parts of a tokenizer that do there what they do here; its Whitespace and Punctuation split otherwise
_PARTS = {
    "normalizer": (
        *("BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD"),
        *("Precompiled", "Prepend", "Replace", "Strip", "StripAccents"),
    ),
    "pre_tokenizer": ("BertPreTokenizer", "ByteLevel", "Digits", "Metaspace", "Split", "WhitespaceSplit"),
    "model": ("BPE", "Unigram", "WordLevel", "WordPiece"),
    "post_processor": ("BertProcessing", "ByteLevel", "RobertaProcessing", "TemplateProcessing"),
}
# It cuts a text behind its special tokens, so a full row has lost its last ones: here they are put back. ``js_end``
# (max_length) holds them in its last places, and -1 before.
_BEFORE = """
js_length = Shape <start = 1, end = 2> (input_ids)
js_last = Slice (js_end, js_zero, js_length)
js_tokens = ReduceSum (attention_mask, js_one)
js_full = Equal (js_tokens, js_most)
js_special = GreaterOrEqual (js_last, js_zero)
js_lost = And (js_full, js_special)
js_ids = Where (js_lost, js_last, input_ids)
"""
_BEHIND = """
js_vector = Unsqueeze (sentence_embedding, js_one)
js_shape = Concat <axis = 0> (js_one, js_length, js_one)
last_hidden_state = Expand (js_vector, js_shape)
"""


def export_folder(bundle: str, out: Path, *, tolerance: float) -> float:
    """Write the folder, and publish it if its graph, given tokens as the library cuts them, has the bundle's vectors.

    Returns:
        The largest difference of the two, of vectors of unit length.
    """
    if meaning_of(bundle).kind is Kind.BANK:
        raise CseError(f"--format {TOOL}: {bundle} is a bank; give a bundle of one model, which `cse export` writes")
    check_folder(out, Kind.TRANSFORMERS_JS)
    onnx_encoder = OnnxEncoder(bundle, provider="cpu")
    manifest = onnx_encoder.manifest
    if reason := _obstacle(Path(bundle), manifest):
        raise CseError(f"--format {TOOL}: {bundle} has no such form, because {reason}")
    tokenizer = plain_copy(Tokenizer.from_file(str(Path(bundle) / TOKENIZER)))
    tokenizers, longest = Tokenizers(tokenizer), onnx_encoder.max_length
    kind, ending = _PRECISIONS[manifest.precision]
    with publish_folder(out, Kind.TRANSFORMERS_JS) as folder:
        # whatever the backbone is: to the library, BERT is one graph that takes ids and a mask
        config = {"model_type": "bert", "architectures": ["BertModel"], f"{TOOL}_config": {"dtype": kind}}
        write_json(folder / "config.json", config)
        # the tokenizer's own save does not raise OSError on a full disk
        (folder / TOKENIZER).write_text(tokenizer.to_str(), encoding="utf-8", newline="\n")
        reading = {
            "tokenizer_class": "PreTrainedTokenizerFast",  # reads tokenizer.json as it is
            "pad_token": tokenizer.id_to_token(manifest.pad_id),
            "unk_token": read_object(folder / TOKENIZER, "")["model"].get("unk_token"),
            "model_max_length": longest,
        }
        write_json(folder / "tokenizer_config.json", reading)
        path = folder / f"onnx/model{ending}.onnx"
        path.parent.mkdir()
        onnx.save(_graph(Path(bundle) / MODEL, longest, tokenizers.around[1]), path)
        facts = {"kind": Kind.TRANSFORMERS_JS, "backbone": manifest.backbone, "files": {}}
        write_sealed(folder / Kind.TRANSFORMERS_JS.manifest, facts)
        texts = [*SENTENCES, SENTENCES[-1] * 4]  # most models cut the last
        rows = [np.array(one.ids[:longest], np.int32) for one in tokenizers.whole.encode_batch(texts)]
        ids, mask = pad(rows, manifest.pad_id)
        session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        (states,) = session.run(["last_hidden_state"], {"input_ids": ids, "attention_mask": mask})
        wanted = onnx_encoder.encode_counting(texts, normalize=True).embeddings
        difference = float(np.abs(unit_rows(states[:, -1]) - wanted).max())
        if not difference <= tolerance:
            raise CseError(
                f"--format {TOOL}: {bundle}: its vectors would differ by {difference:.1e}; nothing was published"
            )
    return difference


def _obstacle(bundle: Path, manifest: Manifest) -> str:
    """Return what keeps a bundle out of a browser, or an empty string."""
    if not manifest.constant:
        return "it has a query side, and its prompts are no part of the graph; serve it with `cse serve`"
    size = sum(path.stat().st_size for path in bundle.glob(f"{MODEL}*"))
    if size > _MOST:
        return f"its graph has {size / 1e9:.1f} GB, and a browser takes 2; export with export.precision: fp16 or int8"
    tree = read_object(bundle / TOKENIZER, "export the bundle again")
    for part, known in _PARTS.items():
        for name in re.findall(r'"type": "(\w+)"', json.dumps(tree[part])):
            if name not in (*known, "Sequence"):
                return f"its tokenizer has {name}, which splits otherwise there or is missing"
    around = (tree["post_processor"] or {}).get("special_tokens", {})
    if any(one["tokens"] != [name] for name, one in around.items()):
        return "that library puts no template around a text"
    return ""


def _graph(source: Path, max_length: int, after: list[int]) -> onnx.ModelProto:
    """Return a bundle's graph in one piece, with the nodes before and behind it.

    Args:
        after: ids of the special tokens behind a text.
    """
    model = onnx.load(source)
    graph = model.graph
    end = [-1] * (max_length - len(after)) + after
    for name, value in {"zero": [0], "one": [1], "most": [max_length], "end": end}.items():
        graph.initializer.append(from_array(np.array(value, np.int64), f"js_{name}"))
    for node in graph.node:
        node.input[:] = ["js_ids" if name == "input_ids" else name for name in node.input]
    before, behind = ([parse_node(line) for line in text.split("\n") if line] for text in (_BEFORE, _BEHIND))
    nodes = [*before, *graph.node, *behind]
    del graph.node[:]
    graph.node.extend(nodes)
    sizes = [*graph.input[0].type.tensor_type.shape.dim, graph.output[0].type.tensor_type.shape.dim[1]]
    shape = [size.dim_param or size.dim_value for size in sizes]
    graph.output.append(make_tensor_value_info("last_hidden_state", onnx.TensorProto.FLOAT, shape))
    return model
