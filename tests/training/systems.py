"""Whole systems on a tiny backbone: every term of the loss that looks at more than one row, with or without dropout."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from cse.losses.contrastive_tension import ContrastiveTension
from cse.losses.distillation import Distillation
from cse.losses.energy_hinge import EnergyHinge
from cse.losses.group import ALONE, Group
from cse.losses.label_proxies import LabelProxies
from cse.losses.masked_lm import MaskedLm, Vocabulary
from cse.losses.mutual_information import MutualInformation
from cse.losses.nli_softmax import NliSoftmax
from cse.losses.shared import Loss
from cse.losses.supervised_contrastive import SupervisedContrastive
from cse.model.mlm_head import load_mlm_head
from cse.model.passes import pinned
from cse.model.sentence_encoder import SentenceEncoder
from cse.settings import objective as of
from cse.training.batch import TokenTable, tokenise
from cse.training.losses import Losses, bare_teacher
from tests.parts import Cut, backbone_of, new_prompt, new_template, sentence_encoder
from tests.training.helpers import (
    Fours,
    contrast,
    encode_batch,
    make_rows,
    momentum_queue,
    replaced_tokens_term,
    self_guided_term,
)

SYSTEMS = (
    "promcse", "hinge", "full", "masked_lm", "d2cse", "diffcse", "denoised", "tension", "self_guided", "information",
    "classifier", "queue", "near", "proxies",
)  # fmt: skip
VIEWS = {
    "hinge": "triplets",
    "near": "triplets",
    "classifier": "labelled",
    "proxies": "pairs",
}  # all others: sentences
CPU = torch.device("cpu")
VOCABULARY = Vocabulary(size=46, mask=45, special=(2, 3, 45, 0))  # of the tiny BERT


def swap_some(rows, device, epoch):
    """A source that replaces about a third of the tokens by their place and view; the first token stays."""
    swap = ((rows.index_BL + rows.views[:, None] + epoch) % 3 == 0) & (rows.mask_BL == 1)
    swap[:, 0] = False
    return pinned(np.where(swap, 5 + (rows.ids_BL + 7) % 30, rows.ids_BL), device)


def make_system(name: str, folder: Path, *, dropout: float, rows: int = 40):
    """Return encoder in training mode, losses and tokenised rows of one of ``SYSTEMS``, the same each time."""
    backbone = backbone_of(folder)
    for module in backbone.model.modules():
        if hasattr(module, "p"):
            module.p = dropout
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = dropout
    torch.manual_seed(11)
    frozen = name not in ("full", "diffcse", "tension", "self_guided")
    prompt = new_prompt("key_value", backbone, length=4, dropout=dropout, init_std=0.5) if frozen else None
    options = {
        "d2cse": {"mlp": "train_only", "projector": "batch_norm", "cls": True},
        "diffcse": {"mlp": "train_only", "projector": "batch_norm"},
        "information": {"pooler": "cnn"},
        "denoised": {"pooler": "mask", "denoise": "always", "mlp": "always"},
    }.get(name, {})
    if name == "denoised":
        options["templates"] = [new_template('the "{sentence}" not {mask} .', backbone, trained=False)]
    encoder = sentence_encoder(
        backbone, prompt, trained="prompts" if frozen else "full", **({"pooler": "cls"} | options)
    )
    torch.manual_seed(12)
    losses = _losses(name, encoder)
    return encoder.train(), losses.train(), _table(name, encoder, rows)


def _losses(name: str, encoder: SentenceEncoder) -> Losses:
    nt_xent = contrast(encoder, temperature=0.2)
    terms: dict[str, Loss] = {"nt_xent": nt_xent}
    if name == "hinge":
        terms["energy_hinge"] = EnergyHinge(encoder, of.EnergyHingeSettings())
    if name == "masked_lm":
        head = load_mlm_head(encoder.backbone, wanted_by="a test")
        chosen = of.MaskedLmSettings(weight=0.3, decay_rate=0.9**10, train_head=True)
        terms[name] = MaskedLm(encoder, chosen, head, seed=1)
        terms[name].mask_share = 0.3
    if name in ("d2cse", "diffcse"):
        kind = {"d2cse": "shared", "diffcse": "copy"}[name]
        terms["replaced_tokens"] = replaced_tokens_term(encoder, swap_some, discriminator=kind)
    if name == "near":
        terms["distillation"] = Distillation(
            encoder, of.DistillationSettings(weight=2.0, temperature=0.2), [bare_teacher(encoder)]
        )
    if name == "proxies":
        terms["supervised_contrastive"] = SupervisedContrastive(encoder, of.SupervisedContrastiveSettings(weight=0.5))
        terms["label_proxies"] = LabelProxies(encoder, of.LabelProxiesSettings(weight=2.0), 3)
    if name == "queue":
        nt_xent.queue = momentum_queue(encoder, size=6, momentum=0.5)
    alone: dict[str, Callable[[], Loss]] = {
        "tension": lambda: ContrastiveTension(encoder, Fours(weight=1.0)),
        "self_guided": lambda: self_guided_term(encoder),
        "information": lambda: MutualInformation(encoder, of.MutualInformationSettings(weight=1.0)),
        "classifier": lambda: NliSoftmax(encoder, of.NliSoftmaxSettings(weight=1.0)),
    }
    return Losses({name: alone[name]()} if name in alone else terms)


def _table(name: str, encoder: SentenceEncoder, count: int) -> TokenTable:
    view, rows = VIEWS.get(name, "sentences"), make_rows(count)
    if view == "labelled":
        labels = ("entailment", "neutral", "contradiction")
        rows = rows.drop_columns("hard_neg").append_column("label", [[labels[row % 3] for row in range(count)]])
    elif view == "sentences":
        rows = rows.select(["sent0"])
    elif view == "pairs":
        rows = rows.drop_columns("hard_neg")
    tokenizers = [encoder.tokenizer_of_view(0, training=True)]
    table = tokenise(rows, view, tokenizers, max_length=16, pad_id=encoder.backbone.pad_id)
    return replace(table, labels=np.arange(count) ** 2 % 5 % 4 - 1) if name == "proxies" else table  # -1 to 2


def take_step(
    name: str,
    folder: Path,
    rows: np.ndarray,
    cut: Cut,
    group: Group = ALONE,
    *,
    device: torch.device = CPU,
    precision: str = "fp64",
) -> dict:
    """Return terms, gradients, what is remembered, and slice shapes of one step, with dropout off.

    In ``fp64``, ``fp32`` or ``bf16`` (matrix products alone).
    """
    encoder, losses, table = make_system(name, folder, dropout=0.0)
    to_float, keep = torch.Tensor.float, nullcontext()
    if precision == "fp64":
        encoder.double(), losses.double()
        keep = mock.patch.object(torch.Tensor, "float", lambda x: x if x.dtype == torch.float64 else to_float(x))
    encoder.to(device), losses.to(device)
    bf16 = precision == "bf16"
    with keep:
        batch = encode_batch(
            encoder, table, rows, cut=cut, step=3, epoch=0,
            device=device, bf16=bf16, group=group,
        )  # fmt: skip
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
            terms = losses(batch)
        terms["loss"].backward()
        weights = encoder.trainable() | losses.trainable()
        group.average_gradients(weights)
        losses.after_update(batch)
        values = group.average(terms)
    return {
        "terms": values,
        "gradients": {name: weight.grad for name, weight in weights.items() if weight.grad is not None},
        "memory": losses.memory(),
        "slices": [tuple(piece.ids_BL.shape) for piece in batch.slices],
    }


def assert_same_step(found: dict, expected: dict) -> None:
    """Terms, gradients and memory are equal to rounding in float64."""
    assert found["terms"] == pytest.approx(expected["terms"], rel=1e-8)
    assert found["gradients"].keys() == expected["gradients"].keys()
    for name, gradient in expected["gradients"].items():
        assert (found["gradients"][name] - gradient).norm() <= 1e-8 * gradient.norm() + 1e-12, name
    for name, values in expected["memory"].items():
        torch.testing.assert_close(found["memory"][name], values, rtol=1e-8, atol=1e-9)
