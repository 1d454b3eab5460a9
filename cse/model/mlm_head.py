"""The pretrained head of a masked language model, from token outputs to vocabulary logits."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModelForMaskedLM

from cse.errors import CseError
from cse.model.backbone import Backbone
from cse.model.backbone_files import BackboneFiles
from cse.model.quiet import quietly

WITH_HEAD = (
    "google-bert/bert-base-uncased, google-bert/bert-large-uncased, FacebookAI/roberta-base, FacebookAI/roberta-large"
)


class MlmHead(nn.Module):
    """Transform (Linear, GELU, LayerNorm) and decoder of BERT's and RoBERTa's masked language model.

    The decoder is the backbone's word table unless ``untie`` gave the head its own trainable copy.

    Attributes:
        decoder: own table ``(vocabulary, D)``, or None.
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
    try:
        with quietly():
            return AutoModelForMaskedLM.from_pretrained(files.folder, dtype=torch.float32, output_loading_info=True)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CseError(f"{files.name}: cannot be read as a masked language model: {reason}") from None


def has_head(loading: dict[str, Any]) -> bool:
    """Return whether the files of a masked language model included its head, not counting tied tensors."""
    heads = ("cls.predictions.transform", "lm_head.dense", "lm_head.layer_norm", "vocab_transform", "vocab_layer_norm")
    return not any(key.startswith(heads) for key in loading["missing_keys"])
