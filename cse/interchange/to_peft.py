"""Write an encoder's prompt as an adapter for prefix tuning, which ``PeftModel.from_pretrained`` loads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from cse.errors import CseError
from cse.export.parity import check_parity
from cse.interchange.fit import obstacle, stacked_prefix
from cse.model.backbone_files import quietly
from cse.model.families import FULL, layer_types
from cse.model.pooling import pool
from cse.model.sentence_encoder import SentenceEncoder
from cse.outputs import Kind, publish_folder
from cse.runtime.encode import encode_sentences
from cse.runtime.uses import QUERY

TOOL = "peft"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# families whose models take keys and values from outside and number the tokens after them
FAMILIES = ("bert", "roberta", "electra", "llama", "qwen3", "gemma3")


def export_adapter(
    encoder: SentenceEncoder, out: Path, sentences: Sequence[str], *, tolerance: float
) -> dict[str, Any] | None:
    """Write the adapter, load it back with PEFT and publish it if it gives the encoder's vectors after pooling.

    Returns:
        What ``check_parity`` returns; None, if PEFT is not installed to compare with.
    """
    _refuse(encoder)
    with quietly(), publish_folder(out, Kind.PEFT) as folder:
        write_adapter(encoder, folder)
        try:
            import peft
        except ModuleNotFoundError:
            return None
        again = _LoadedAdapter(encoder, folder, f"{TOOL} {peft.__version__}")
        return check_parity(encoder, again, sentences, tolerance=tolerance, name=TOOL)


def write_adapter(encoder: SentenceEncoder, folder: Path) -> None:
    """Write an encoder's prompt into an empty folder, as ``PeftModel.save_pretrained`` would."""
    backbone, prefix = encoder.backbone, stacked_prefix(encoder)
    layers, _, heads, length, width = prefix.shape
    table = prefix.permute(3, 0, 1, 2, 4).reshape(length, -1)  # (P, layers * 2 * H * K)
    save_file({"prompt_embeddings": table.contiguous()}, folder / WEIGHTS)
    config = {
        "peft_type": "PREFIX_TUNING",
        "task_type": "FEATURE_EXTRACTION",
        "base_model_name_or_path": backbone.files.name,
        "revision": backbone.files.revision,
        "inference_mode": True,
        "num_virtual_tokens": length,
        "num_transformer_submodules": 1,
        "num_layers": layers,
        "num_attention_heads": heads,
        "token_dim": heads * width,
        "encoder_hidden_size": heads * width,
        "prefix_projection": False,
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(_card(encoder), encoding="utf-8")


def _card(encoder: SentenceEncoder) -> str:
    """Return what the adapter's files have no place for: how to cut a text and to pool."""
    files = encoder.backbone.files
    return (
        f"---\nbase_model: {files.name}\nlibrary_name: peft\n---\n\n"
        f"A prompt of {encoder.prompt.length} keys and values per layer for `{files.name}` (PEFT, prefix tuning).\n\n"  # type: ignore[union-attr]
        f"- Cut texts at {encoder.max_length} tokens, special tokens included.\n"
        f"- Pool the last layer's outputs by `{encoder.pooler}`, then scale vectors to unit length.\n"
    )


def _refuse(encoder: SentenceEncoder) -> None:
    reason = obstacle(encoder) or _own_obstacle(encoder)
    if reason:
        raise CseError(
            f"--format {TOOL}: prefix tuning cannot express this model, because {reason}; use --format "
            "sentence-transformers or onnx"
        )


def _own_obstacle(encoder: SentenceEncoder) -> str:
    """Return what prefix tuning has no place for, or an empty string."""
    family, config = encoder.transformer.family, encoder.transformer.model.config
    if encoder.side == QUERY:
        return "its prompt is for queries alone"
    if encoder.prompt is None:
        return "it has no prompt"
    if not encoder.frozen:
        return "the language model was trained too"
    if encoder.cls is not None:
        return "its [CLS] vector was trained"
    if encoder.backbone.dense is not None:
        return "its backbone has layers behind the pooling"
    if encoder.read_out.mlp == "always":
        return f"it has a projector ({encoder.read_out.projector})"
    if encoder.post is not None:
        return f"it has post-processing ({encoder.post.config()['kind']})"
    if family.name not in FAMILIES:
        return f"models of the {family.name} family take no keys and values from outside"
    if not encoder.shift:
        return "its tokens do not start after the prompt's positions (prompt.position_shift: false)"
    if set(layer_types(config)) != {FULL}:
        return "its sliding layers would lose sight of the prompt"
    return ""


class _LoadedAdapter:
    """The language model with the adapter, and an encoder's tokenizer and pooler around it."""

    def __init__(self, encoder: SentenceEncoder, folder: Path, provider: str) -> None:
        from peft import PeftModel
        from transformers import AutoModel

        self.encoder, self.provider = encoder, provider
        base = AutoModel.from_pretrained(encoder.backbone.files.folder, dtype=torch.float32)
        self.model: Any = PeftModel.from_pretrained(base, str(folder)).eval()

    def encode(self, sentences: Sequence[str], *, normalize: bool) -> np.ndarray:
        encoder = self.encoder

        def embed(ids_BL: np.ndarray, mask_BL: np.ndarray, _: object) -> np.ndarray:
            ids, mask = torch.from_numpy(ids_BL), torch.from_numpy(mask_BL)
            with torch.no_grad():
                state_BLD = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
            return pool(encoder.pooler, [state_BLD], mask).numpy()

        return encode_sentences(
            sentences,
            tokenizers=encoder.text_tokenizers,
            embed=embed,
            dimension=encoder.dimension,
            max_length=encoder.max_length,
            pad_id=encoder.backbone.pad_id,
            normalize=normalize,
        ).embeddings
