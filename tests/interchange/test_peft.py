"""Adapters for PEFT's prefix tuning: the same vectors after pooling, or a refusal by name."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from cse.errors import CseError
from cse.interchange.peft import CONFIG, WEIGHTS, export_adapter, write_adapter
from cse.model.pooling import pool
from tests.export.systems import SENTENCES
from tests.parts import sentence_encoder

EXPRESSED = [
    *("bert", "roberta", "xlm-roberta", "camembert", "electra", "electra, wide words"),
    *("llama", "mistral, no window", "qwen3"),
]


@pytest.mark.parametrize(("case", "kind"), [("bert", "hidden_state"), *((case, "key_value") for case in EXPRESSED)])
def test_the_adapter_gives_the_same_vectors(encoders, tmp_path, case, kind):
    peft = pytest.importorskip("peft")
    from transformers import AutoModel

    encoder = encoders(case, kind, pooler="mean")
    export_adapter(encoder, tmp_path / "adapter", SENTENCES, tolerance=1e-5)
    base = AutoModel.from_pretrained(encoder.backbone.files.folder)
    model = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    tokenizer = encoder.text_tokenizers.truncating_at(encoder.max_length)
    bare = sentence_encoder(encoder.backbone, pooler="mean").encode(SENTENCES, normalize=False)
    for text, other in zip(SENTENCES, bare, strict=True):
        ids = torch.tensor([tokenizer.encode(text).ids])
        with torch.no_grad():
            states = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        found = pool("mean", [states], torch.ones_like(ids))[0].numpy()
        np.testing.assert_allclose(found, encoder.encode(text, normalize=False), atol=1e-5, rtol=0)
        assert np.abs(found - other).max() > 0.02, "the prompt is in force"


def test_the_adapter_is_written_without_peft(encoders, tmp_path):
    encoder = encoders("bert", pooler="cls")
    write_adapter(encoder, tmp_path)
    config = json.loads((tmp_path / CONFIG).read_text())
    assert (config["peft_type"], config["task_type"]) == ("PREFIX_TUNING", "FEATURE_EXTRACTION")
    assert config["base_model_name_or_path"] == encoder.backbone.files.name
    table = load_file(tmp_path / WEIGHTS)["prompt_embeddings"]
    assert torch.equal(table, encoder.prompt.table.detach()), "the layout of the released PromCSE checkpoints"
    card = (tmp_path / "README.md").read_text()
    assert f"Cut texts at {encoder.max_length} tokens" in card
    assert "by `cls`" in card


@pytest.mark.parametrize(
    ("case", "kind", "options", "reason"),
    [
        ("bert", None, {}, "it has no prompt"),
        ("bert", "input", {}, "its input-layer prompt"),
        ("bert", "key_value", {"position_shift": False}, "its tokens do not start after the prompt's positions"),
        ("bert", "key_value", {"cls": True}, r"its \[CLS\] vector was trained"),
        ("bert", "key_value", {"trained": "full"}, "the language model was trained too"),
        ("bert", "key_value", {"mlp": "always"}, r"it has a projector \(tanh\)"),
        ("bert", "key_value", {"post": "discriminant"}, r"it has post-processing \(discriminant\)"),
        ("bert", "key_value", {"pooler": "mean_top2"}, "its pooler is mean_top2"),
        ("modernbert", "key_value", {}, "models of the modernbert family take no keys"),
        ("mistral", "key_value", {}, "its sliding layers would lose sight of the prompt"),
        ("gemma3", "key_value", {}, "its sliding layers would lose sight of the prompt"),
    ],
)
def test_what_prefix_tuning_cannot_express_is_named(encoders, tmp_path, case, kind, options, reason):
    encoder = encoders(case, kind, **options)
    with pytest.raises(CseError, match=f"because {reason}.*; use --format"):
        export_adapter(encoder, tmp_path / "adapter", SENTENCES, tolerance=1e-5)
    assert not list(tmp_path.iterdir())
