"""A GGUF file as a backbone: written here by the format's own library, as llama.cpp's converter would."""

import json
import re

import numpy as np
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaModel

from cse.model.backbone import load_backbone
from cse.model.backbone_files import find_backbone
from cse.model.sentence_encoder import SentenceEncoder
from tests.parts import refusal

gguf = pytest.importorskip("gguf")

WORDS = [*sorted(ByteLevel.alphabet()), "ca", "cat", "Ġcat", "<|endoftext|>"]
MERGES = ["c a", "ca t", "Ġ cat"]
CONTROL, Q8 = 3, gguf.GGMLQuantizationType.Q8_0
SHAPE = {
    "vocab_size": len(WORDS), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "pad_token_id": 259, "bos_token_id": 259, "eos_token_id": 259,
}  # fmt: skip
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def as_llama_cpp_rotates(weight: np.ndarray, heads: int) -> np.ndarray:
    """Put the two halves of each head's rows in turn, as that program's rotary positions want them."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write(path, model, *, quantised=False, pooling=None):
    writer = gguf.GGUFWriter(path, "llama")
    for add, value in (
        (writer.add_block_count, "num_hidden_layers"), (writer.add_context_length, "max_position_embeddings"),
        (writer.add_embedding_length, "hidden_size"), (writer.add_feed_forward_length, "intermediate_size"),
        (writer.add_head_count, "num_attention_heads"), (writer.add_head_count_kv, "num_key_value_heads"),
        (writer.add_layer_norm_rms_eps, "rms_norm_eps"), (writer.add_rope_dimension_count, "head_dim"),
        (writer.add_vocab_size, "vocab_size"), (writer.add_bos_token_id, "bos_token_id"),
        (writer.add_eos_token_id, "eos_token_id"), (writer.add_pad_token_id, "pad_token_id"),
    ):  # fmt: skip
        add(SHAPE[value])
    if pooling is not None:
        writer.add_uint32("llama.pooling_type", pooling)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_types([1] * (len(WORDS) - 1) + [CONTROL])
    writer.add_token_merges(MERGES)
    tables = {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}
    for name, value in model.state_dict().items():
        weight, kind = value.numpy(), None
        if name not in tables:
            layer, part = name.removeprefix("layers.").removesuffix(".weight").split(".", 1)
            if heads := {"self_attn.q_proj": 4, "self_attn.k_proj": 2}.get(part):
                weight = as_llama_cpp_rotates(weight, heads)
            if quantised and part == "mlp.up_proj":
                weight, kind = gguf.quantize(weight, Q8), Q8
        writer.add_tensor(tables.get(name) or f"blk.{layer}.{NAMES[part]}.weight", weight, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def model():
    return LlamaModel(LlamaConfig(**SHAPE, initializer_range=0.2)).eval()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path / "assets"))
    return tmp_path / "assets"


def test_it_gives_the_states_that_were_written_pooled_as_the_file_says(model, tmp_path):
    """A family of decoders takes the last token where nothing is said; what ranks gives no vector."""
    path = tmp_path / "tiny.gguf"
    for pooling in (None, 0, 1, 2, 3):
        write(path, model, pooling=pooling)
        encoder = SentenceEncoder.load(str(path))
        backbone = encoder.backbone
        assert (backbone.family.name, backbone.layers, backbone.heads) == ("llama", 2, 2)
        assert backbone.tokenizer.encode("a cat").tokens == ["a", "Ġcat"]
        with torch.no_grad():
            states = model(torch.tensor([backbone.tokenizer.encode("a cat cat").ids])).last_hidden_state[0]
        expected = {1: states.mean(dim=0), 2: states[0]}.get(pooling, states[-1])
        np.testing.assert_allclose(encoder.encode("a cat cat", normalize=False), expected, atol=1e-5)
    write(path, model, pooling=4)
    files = find_backbone(str(path))
    assert "pools by rank, which is neither mean, cls nor last; choose one with pooler" in refusal(load_backbone, files)
    assert load_backbone(files, "mean").pooling == "mean"


def test_blocks_are_unpacked_as_the_format_says_once_and_again_after_a_kill(model, tmp_path, cache):
    write(path := tmp_path / "tiny.gguf", model, quantised=True)
    files = find_backbone(str(path))
    found = load_backbone(files).model.layers[1].mlp.up_proj.weight.detach().numpy()
    written = model.layers[1].mlp.up_proj.weight.detach().numpy()
    np.testing.assert_array_equal(found, gguf.dequantize(gguf.quantize(written, Q8), Q8))
    assert not np.array_equal(found, written)
    assert "quantization_config" not in json.loads((files.folder / "config.json").read_text())
    assert cache in files.folder.parents
    stamp = (files.folder / "model.safetensors").stat().st_mtime_ns
    assert find_backbone(str(path)) == files
    assert (files.folder / "model.safetensors").stat().st_mtime_ns == stamp
    (files.folder / "model.safetensors").unlink()  # the weights come last
    assert find_backbone(str(path)).sha256 == files.sha256


def test_a_damaged_file_or_a_missing_package_is_one_line(model, tmp_path, monkeypatch):
    path = tmp_path / "tiny.gguf"
    write(path, model)
    whole = path.read_bytes()
    for damaged in (b"", b"no model", whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        assert re.search(r"cannot read .*tiny\.gguf: .*; fetch it again", refusal(find_backbone, str(path)))
    monkeypatch.setattr("transformers.utils.is_gguf_available", lambda: False)
    assert re.search(r"to read .*tiny\.gguf, pip install 'cse\[gguf\]'", refusal(find_backbone, str(path)))
