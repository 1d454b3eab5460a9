"""Whole systems on a tiny backbone: every term of the loss that looks at more than one row, with or without dropout."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from cse.data.store import VIEW_COLUMNS
from cse.losses.contrastive_tension import ContrastiveTension
from cse.losses.group import ALONE
from cse.losses.masked_lm import MaskedLm, Vocabulary
from cse.losses.nt_xent import NtXent
from cse.losses.replaced_tokens import ReplacedTokens
from cse.model.mlm_head import load_mlm_head
from cse.model.passes import pinned
from cse.model.sentence_encoder import SentenceEncoder
from cse.settings.objective import ObjectiveSettings
from cse.settings.train import TrainSettings
from cse.training.batch import TokenTable, tokenise
from cse.training.losses import Losses, losses_from
from tests.parts import PLAIN, backbone_of, new_plan, new_prompt, new_template, sentence_encoder
from tests.training.helpers import CPU, Fours, embed_rows, make_rows, self_guided_term

SYSTEMS = (
    "promcse", "hinge", "full", "masked_lm", "d2cse", "diffcse", "denoised", "tension", "self_guided", "information",
    "classifier", "queue", "near", "proxies",
)  # fmt: skip
VIEWS = {"hinge": "triplets", "near": "triplets", "classifier": "labelled", "proxies": "pairs"}  # others: sentences
NO_CONTRAST = {"nt_xent": {"weight": 0.0}}
OBJECTIVES = {
    "hinge": {"energy_hinge": {}},
    "masked_lm": {"masked_lm": {"weight": 0.3, "decay_rate": 0.9**10, "train_head": True}},
    "d2cse": {"replaced_tokens": {"weight": 0.5, "generator": "unigram"}},
    "diffcse": {"replaced_tokens": {"weight": 0.5, "generator": "unigram", "discriminator": "copy"}},
    "near": {"distillation": {"weight": 2.0, "temperature": 0.2}},
    "proxies": {"supervised_contrastive": {"weight": 0.5}, "label_proxies": {"weight": 2.0}},
    "queue": {"nt_xent": {"temperature": 0.2, "queue": 6, "queue_projector": "following"}},
    "information": NO_CONTRAST | {"mutual_information": {"weight": 1.0}},
    "classifier": NO_CONTRAST | {"nli_softmax": {"weight": 1.0}},
}
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
    templates = [new_template('the "{sentence}" not {mask} .', backbone)]
    options = {"pooler": "cls", "trained": "prompts" if frozen else "full"}
    options |= {
        "d2cse": {"mlp": "train_only", "projector": "batch_norm", "cls": True},
        "diffcse": {"mlp": "train_only", "projector": "batch_norm"},
        "information": {"pooler": "cnn"},
        "denoised": {"pooler": "mask", "denoise": "always", "mlp": "always", "templates": templates},
    }.get(name, {})
    encoder = sentence_encoder(backbone, prompt, **options)
    torch.manual_seed(12)
    table = _table(name, encoder, rows)
    return encoder.train(), _losses(name, encoder, table).train(), table


def _losses(name: str, encoder: SentenceEncoder, table: TokenTable) -> Losses:
    if name == "tension":
        return Losses({name: ContrastiveTension(encoder, Fours(weight=1.0))})
    if name == "self_guided":
        return Losses({name: self_guided_term(encoder)})
    usual = {"nt_xent": {"temperature": 0.2}, "energy_hinge": {"weight": 0.0}}
    head = load_mlm_head(encoder.backbone, wanted_by="a test") if name == "masked_lm" else None
    made = losses_from(
        ObjectiveSettings(**usual | OBJECTIVES.get(name, {})), encoder, TrainSettings(), table, head=head
    )
    for term in made.terms.values():  # so that few rows and steps show what a term does
        if isinstance(term, MaskedLm):
            term.mask_share = 0.3
        if isinstance(term, ReplacedTokens):
            term.source = swap_some
        if isinstance(term, NtXent) and term.queue is not None:
            term.queue.momentum = 0.5
    return made


def _table(name: str, encoder: SentenceEncoder, count: int) -> TokenTable:
    view, rows = VIEWS.get(name, "sentences"), make_rows(count)
    if view == "labelled":
        labels = ("entailment", "neutral", "contradiction")
        rows = rows.append_column("label", [[labels[row % 3] for row in range(count)]])
    tokenizers = [encoder.tokenizer_of_view(0, training=True)]
    rows = rows.select(VIEW_COLUMNS[view])
    table = tokenise(rows, view, tokenizers, max_length=16, pad_id=encoder.backbone.pad_id)
    return replace(table, labels=np.arange(count) * 3 % 7 % 4 - 1) if name == "proxies" else table  # -1 to 2


def take_step(name, folder, rows, cut, group=ALONE, *, device=CPU, precision="fp64", dropout=0.0, augment=PLAIN):
    """Return terms, gradients, what is remembered, slice shapes and passes of one step.

    In ``fp64``, ``fp32`` or ``bf16`` (matrix products alone).
    """
    encoder, losses, table = make_system(name, folder, dropout=dropout)
    to_float, keep = torch.Tensor.float, nullcontext()
    if precision == "fp64":
        encoder.double(), losses.double()
        keep = mock.patch.object(torch.Tensor, "float", lambda x: x if x.dtype == torch.float64 else to_float(x))
    encoder.to(device), losses.to(device)
    bf16, passes = precision == "bf16", []
    encoder.backbone.model.encoder.layer[0].register_forward_hook(lambda *_: passes.append(1))
    plan = new_plan(cut=cut, augment=augment, bf16=bf16)
    torch.manual_seed(7)
    with keep:
        batch = embed_rows(encoder, table, rows, plan, step=3, device=device, group=group)
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
        "passes": len(passes),
    }


def assert_same_step(found: dict, expected: dict, tolerance: float = 1e-8) -> None:
    """Terms, gradients and memory are equal to rounding, in float64 unless told."""
    assert found["terms"] == pytest.approx(expected["terms"], rel=tolerance)
    assert found["gradients"].keys() == expected["gradients"].keys()
    for name, gradient in expected["gradients"].items():
        assert (found["gradients"][name] - gradient).norm() <= tolerance * gradient.norm().clamp(min=1e-3), name
    for name, values in expected["memory"].items():
        torch.testing.assert_close(found["memory"][name], values, rtol=tolerance, atol=0.1 * tolerance)
