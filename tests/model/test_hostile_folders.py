"""Model folders that are broken or made to break: each is refused in one line, at once, or works."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from cse.errors import CseError
from cse.model.sentence_encoder import SentenceEncoder
from tests.model.families import make_family_folder
from tests.model.test_declared import declare
from tests.tiny import make_backbone_folder

pytestmark = pytest.mark.timeout(30)  # of fourteen folders at most
GONE = object()
DEEP = "[" * 100_000
WRONG = (GONE, None, 0, -1, 1.5, True, "3", [], {}, 10**7, 10**12, 10**400, float("nan"), float("inf"))
COUNTS = (
    "num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size", "intermediate_size", "pad_token_id",
    "max_position_embeddings", "type_vocab_size", "layer_norm_eps", "hidden_dropout_prob", "hidden_act", "model_type",
    "matryoshka_dimensions",
)  # fmt: skip
ROTARY = (
    "num_key_value_heads", "head_dim", "rope_theta", "rope_parameters", "rms_norm_eps", "layer_types", "attention_bias",
    "sliding_window", "max_window_layers",
)  # fmt: skip
NEEDED = ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size")
QUANTIZED = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
ST = "sentence_transformers.models."
# by file, what it holds instead: text, or a JSON value
FILES: dict[str, list[Any]] = {
    "config.json": [DEEP, "{", "\xff", [], None, QUANTIZED],
    "tokenizer.json": [DEEP, "{", [], {}],
    "modules.json": [
        DEEP, {}, {"type": 1}, 5, "text", [1], [[]], [{}], [{"type": 3, "path": ""}], [{"type": "evil.Transformer"}],
        [{"type": f"{ST}Transformer", "path": 7}], [{"type": "sentence_transformers_evil.models.Transformer"}],
        [{"type": f"{ST}Transformer", "path": ""}, {"type": f"{ST}Dense", "path": "../outside"}],
        [{"type": f"{ST}Transformer", "path": ""}, {"type": f"{ST}Dense", "path": "/etc"}],
    ],
    "1_Pooling/config.json": [
        DEEP, [], "text", {"pooling_mode": 5}, {"pooling_mode": [[]]}, {"pooling_mode": {"mean": 1}},
        {"pooling_mode_mean_tokens": [], "pooling_mode": None},
    ],
    "config_sentence_transformers.json": [DEEP, [], {"prompts": 3}, {"prompts": {"query": 3}}, {"prompts": "text"}],
    "sentence_bert_config.json": [DEEP, [], {"max_seq_length": "x"}, {"max_seq_length": -1}, {"max_seq_length": True}],
}  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("hostile")
    return {
        "bert": make_backbone_folder(root / "bert", "bert", pooling="mean"),
        "qwen3": make_family_folder(root / "qwen3", "qwen3, sliding"),
    }


def outcome(folder: Path) -> str:
    """Load a folder and embed a text; return the line that refuses it, or nothing."""
    try:
        vectors = SentenceEncoder.load(folder).encode(["the cat sleeps", ""])
    except CseError as error:
        assert "\n" not in str(error) and len(str(error)) < 600
        return str(error)
    assert np.isfinite(vectors).all()
    return ""


@pytest.mark.parametrize(("model", "key"), [("bert", key) for key in COUNTS] + [("qwen3", key) for key in ROTARY])
def test_a_value_of_the_configuration(models, tmp_path, model, key):
    folder = shutil.copytree(models[model], tmp_path / "model")
    path = folder / "config.json"
    usual = json.loads(path.read_text())
    refused = 0
    for value in WRONG:
        changed = {name: old for name, old in (usual | {key: value}).items() if old is not GONE}
        path.write_text(json.dumps(changed))
        refused += outcome(folder) != ""
    if key in NEEDED:
        assert refused == len(WRONG)
    assert refused > 3, "hardly anything was refused, so nothing was tried"
    path.write_text(json.dumps(usual))
    assert outcome(folder) == ""
    if key == "num_hidden_layers":
        path.write_text(json.dumps(usual | {key: 2}))  # layers that nobody would miss
        assert "describes 2 layers, and its weights 3" in outcome(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_file(models, tmp_path, name):
    folder = shutil.copytree(models["bert"], tmp_path / "model")
    usual = json.loads((folder / "config.json").read_text())
    for value in FILES[name]:
        if isinstance(value, dict) and name == "config.json":
            value = usual | value
        text = value if isinstance(value, str) and value != "text" else json.dumps(value)
        (folder / name).write_bytes(text.encode("latin-1"))
        assert outcome(folder), f"{value!r:.80} was taken"


def around(tree: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The tokenizer with something else around a text."""
    return tree | {"post_processor": tree["post_processor"] | {key: value(tree["post_processor"][key])}}


def separator(*ids: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda special: special | {"[SEP]": {"id": "[SEP]", "ids": ids, "tokens": ["[SEP]"] * len(ids)}}


PADDED = {"direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]", "pad_to_multiple_of": None}
SEP, TEXT = {"SpecialToken": {"id": "[SEP]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
TOKENIZERS: list[tuple[str, Any]] = [
    ("tokens up to id 64, and the model 64",
     lambda tree: tree | {"model": tree["model"] | {"vocab": tree["model"]["vocab"] | {"x": 64}}}),
    ("tokens up to id 900, and the model 64", lambda tree: around(tree, "special_tokens", separator(900))),
    ("puts 500,001 tokens around", lambda tree: around(tree, "special_tokens", separator(*[3] * 500_000))),
    ("puts 100,002 tokens around", lambda tree: around(tree, "single", lambda own: [*own, *[SEP] * 100_000])),
    ("a template that repeats the text", lambda tree: around(tree, "single", lambda own: [*own, *[TEXT] * 100_000])),
    ("puts 4,000,000,000 tokens around", lambda tree: tree | {"padding": PADDED | {"strategy": {"Fixed": 4 * 10**9}}}),
    ("", lambda tree: tree | {"padding": PADDED | {"strategy": {"Fixed": 128}}}),  # which models of the hub have
]  # fmt: skip


@pytest.mark.parametrize(("reason", "change"), TOKENIZERS, ids=[reason for reason, _ in TOKENIZERS])
def test_a_tokenizer(models, tmp_path, reason, change):
    folder = shutil.copytree(models["bert"], tmp_path / "model")
    tree = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(change(tree)))
    said = outcome(folder)
    assert reason in said and bool(reason) == bool(said)


@pytest.mark.parametrize("shape", [(31,), (32, 32, 1), (16, 31), (0, 32)])
def test_a_layer_behind_the_pooling(models, tmp_path, shape):
    folder = shutil.copytree(models["bert"], tmp_path / "model")
    declare(folder, modules=("Transformer", "Pooling", "Dense"))
    (folder / "2_Dense").mkdir()
    (folder / "2_Dense/config.json").write_text('{"activation_function": "torch.nn.modules.linear.Identity"}')
    fine, wrong = torch.eye(32), torch.zeros(shape)
    for weights in ({"linear.weight": wrong}, {"linear.weight": fine, "linear.bias": wrong}):
        save_file(weights, folder / "2_Dense/model.safetensors")
        assert "2_Dense" in outcome(folder)


def test_weights_that_are_none(models, tmp_path):
    folder = shutil.copytree(models["bert"], tmp_path / "model")
    path = folder / "model.safetensors"
    content = path.read_bytes()
    huge = json.dumps({"x": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 4]}}).encode()
    sized = len(huge).to_bytes(8, "little") + huge + b"0000"
    for other in (b"", b"x", content[:200], b"\xff" * 16, sized, content[8:]):
        path.write_bytes(other)
        assert "weights" in outcome(folder)
