"""Masked language models: the head of a backbone, and generators that propose tokens (DiffCSE, D2CSE)."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModelForMaskedLM

from cse.errors import CseError, in_terms_of
from cse.model.backbone import Backbone
from cse.model.backbone_files import BackboneFiles, find_backbone, quietly, read_tokenizer
from cse.model.declared import reading
from cse.model.passes import pinned

WITH_HEAD = (
    "google-bert/bert-base-uncased, google-bert/bert-large-uncased, FacebookAI/roberta-base, FacebookAI/roberta-large"
)


class MlmHead(nn.Module):
    """Transform (Linear, GELU, LayerNorm) and decoder of BERT's and RoBERTa's masked language model.

    The decoder is the backbone's word table unless ``untie`` gave the head its own trainable copy.
    """

    def __init__(self, dense: nn.Module, norm: nn.Module, bias: torch.Tensor) -> None:
        super().__init__()
        self.dense = dense
        self.norm = norm
        self.bias = nn.Parameter(bias.detach().clone())
        self.decoder: nn.Parameter | None = None
        self.requires_grad_(False)

    def untie(self, table_VD: torch.Tensor) -> None:
        """Give the head its own decoder and make all its weights trainable (the released DCPCSE code)."""
        self.decoder = nn.Parameter(table_VD.detach().clone())
        self.requires_grad_(True)

    def transform(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        """Return the decoder's input, ``(N, D)``."""
        return self.norm(F.gelu(self.dense(hidden_ND)))

    def forward(self, hidden_ND: torch.Tensor, table_VD: torch.Tensor) -> torch.Tensor:
        """Return logits ``(N, vocabulary)``; ``table_VD`` is the backbone's word table."""
        return F.linear(self.transform(hidden_ND), table_VD if self.decoder is None else self.decoder, self.bias)


def load_mlm_head(backbone: Backbone, *, wanted_by: str) -> MlmHead:
    """Load the head that was pretrained with a backbone."""
    layout = backbone.family.mlm_head
    if layout is None:
        raise CseError(
            f"{wanted_by}: {backbone.files.name} is of family {backbone.family.name}, whose MLM head is not read; "
            f"backbones that have one: {WITH_HEAD}"
        )
    model, loading = load_masked_lm(backbone.files)
    if not has_head(loading):
        raise CseError(f"{wanted_by}: {backbone.files.name} has no MLM head; backbones that have one: {WITH_HEAD}")
    if layout == "roberta":
        head = model.lm_head
        return MlmHead(copy.deepcopy(head.dense), copy.deepcopy(head.layer_norm), head.decoder.bias)
    head = model.cls.predictions
    return MlmHead(copy.deepcopy(head.transform.dense), copy.deepcopy(head.transform.LayerNorm), head.decoder.bias)


def load_masked_lm(files: BackboneFiles) -> tuple[Any, dict[str, Any]]:
    """Load a masked language model in float32; also return its loading info, with any missing weights."""
    with reading(f"{files.name}: cannot be read as a masked language model"), quietly():
        return AutoModelForMaskedLM.from_pretrained(files.folder, dtype=torch.float32, output_loading_info=True)


def has_head(loading: dict[str, Any]) -> bool:
    """Return whether the files of a masked language model included its head, not counting tied tensors."""
    heads = ("cls.predictions.transform", "lm_head.dense", "lm_head.layer_norm", "vocab_transform", "vocab_layer_norm")
    return not any(key.startswith(heads) for key in loading["missing_keys"])


UNIGRAM = "unigram"
_KEY = "objective.replaced_tokens.generator"
_HINT = f"; if no generator is available, set {_KEY}: {UNIGRAM}"


class MaskedLmGenerator:
    """A frozen masked language model with the backbone's vocabulary."""

    reads_context = True  # proposals depend on the sentence; else only masked positions are replaced

    def __init__(self, model: Any, *, dropout: bool) -> None:
        self.model = model.requires_grad_(False).train(dropout)

    def propose(self, masked_BL: np.ndarray, mask_BL: np.ndarray, draw_BL: np.ndarray | None) -> torch.Tensor:
        """Return ids ``(B, L)`` on the model's device: the most likely, or drawn by uniforms ``draw_BL``."""
        device = self.model.device
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            ids, mask = (pinned(array, device) for array in (masked_BL, mask_BL))
            logits_BLV = self.model(input_ids=ids, attention_mask=mask).logits
            if draw_BL is None:
                return logits_BLV.argmax(dim=-1)
            upto_BLV = logits_BLV.double().softmax(dim=-1).cumsum(dim=-1)
            draw = pinned(draw_BL, device).unsqueeze(-1)
            found = torch.searchsorted(upto_BLV, draw, right=True).squeeze(-1)
            return found.clamp(max=logits_BLV.shape[-1] - 1)


class UnigramGenerator:
    """Tokens by their frequency in the training text, without a model; cannot do argmax."""

    reads_context = False

    def __init__(self, columns: Iterable[np.ndarray], size: int, special: tuple[int, ...]) -> None:
        counts = np.zeros(size)
        for ids in columns:
            counts += np.bincount(ids, minlength=size)[:size]
        counts[list(special)] = 0
        if not counts.any():
            raise CseError(f"{_KEY}: 'unigram' found no tokens in the training text")
        self.upto = np.cumsum(counts / counts.sum())
        self.upto /= self.upto[-1]

    def propose(self, masked_BL: np.ndarray, mask_BL: np.ndarray, draw_BL: np.ndarray | None) -> torch.Tensor:
        """Return tokens drawn by frequency; requires ``draw_BL``."""
        if draw_BL is None:
            raise ValueError("a unigram generator samples its tokens; pass draw_BL")
        return torch.from_numpy(np.searchsorted(self.upto, draw_BL, side="right").clip(max=len(self.upto) - 1))


Generator = MaskedLmGenerator | UnigramGenerator


def find_generator(name: str) -> BackboneFiles:
    """Find a generator the same way as a backbone."""
    with in_terms_of(_KEY, "backbone.name", _HINT):
        return find_backbone(name)


def load_generator(
    name: str, backbone: Backbone, *, dropout: bool, device: torch.device | None = None, bf16: bool = False
) -> MaskedLmGenerator:
    """Load a masked language model that proposes tokens for a backbone, onto a device (None: the CPU).

    With ``bf16``, its weights and products are in bfloat16: a tie between two tokens may fall another way.
    """
    files = find_generator(name)
    with in_terms_of(_KEY, "backbone.name", _HINT):
        tokenizer = read_tokenizer(files)
    if tokenizer.get_vocab() != backbone.tokenizer.get_vocab():
        raise CseError(
            f"{_KEY}: {name} has another vocabulary ({tokenizer.get_vocab_size()} tokens) than the backbone "
            f"{backbone.files.name} ({backbone.tokenizer.get_vocab_size()}); take a generator of the same family"
        )
    model, loading = load_masked_lm(files)
    if not has_head(loading):
        raise CseError(f"{_KEY}: {name} has no MLM head; models that have one: distilbert/..., {WITH_HEAD}")
    model = model.to(device or torch.device("cpu"), torch.bfloat16 if bf16 else torch.float32)
    return MaskedLmGenerator(model, dropout=dropout)
