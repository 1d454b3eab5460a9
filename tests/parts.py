"""Build the parts of a system with default options, except for those that a test overrides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from cse.choices import ReadOut
from cse.model.flow import Flow, fit_flow
from cse.model.passes import Constants
from cse.model.prompts import Prompt
from cse.model.sentence_encoder import SentenceEncoder
from cse.model.template import Template, make_template
from cse.settings.train import TrainSettings
from cse.training.batch import NO_AUGMENTATION
from cse.training.loop import Plan
from cse.training.slices import Cut


def sentence_encoder(backbone, prompt: Prompt | None = None, **options: Any) -> SentenceEncoder:
    """An encoder of these parts; options of ``ReadOut``, and ``position_shift`` of the prompt, are among the others."""
    shift = options.pop("position_shift", None)
    if prompt is not None and shift is not None:
        prompt.position_shift = shift
    names = {"pooler": "kind", "loss_pooler": "kind_in_loss", "new_layers": "start"}
    names |= {name: name for name in ("mlp", "projector", "first_layer", "denoise")}
    read_out = ReadOut(**{names[name]: options.pop(name) for name in names.keys() & options})
    return SentenceEncoder(backbone, prompt, read_out, **options)


def new_prompt(kind: str, backbone, **options: Any) -> Prompt:
    return Prompt(kind, backbone, **({"dropout": 0.1, "init_std": 0.02} | options))


def new_template(text: str, backbone, *, trained: bool = False, end_with_period: bool = False) -> Template:
    return make_template(text, backbone, trained=trained, end_with_period=end_with_period)


def new_flow(vectors, **options: Any) -> Flow:
    return fit_flow(vectors, **({"seed": 42} | options))


def new_plan(**changes: Any) -> Plan:
    """Plan with the default settings of ``train``, in float32 and without slicing the batch."""
    return replan(Plan(TrainSettings(), NO_AUGMENTATION, bf16=False), **({"cut": Cut(1, None)} | changes))


def replan(plan: Plan, **changes: Any) -> Plan:
    """Return a plan with other settings of ``train``, another ``cut``, ``augmentation`` or ``bf16``."""
    own = {name: changes.pop(name) for name in ("augmentation", "bf16") if name in changes}
    cut = changes.pop("cut", plan.cut)
    return replace(plan, train=TrainSettings(**plan.train.model_dump() | vars(cut) | changes), **own)


def embed(encoder: SentenceEncoder, ids_BL: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
    """Embed tokenised rows as at inference or, in training mode, as the loss reads them."""
    noisy = encoder.denoise == "always" or (encoder.training and encoder.denoise == "train_only")
    noise_TND = encoder.noise(ids_BL.shape[1] + 1) if noisy else None
    constants = Constants(encoder.prefix(len(ids_BL)), noise_TND)
    if not encoder.training:
        return encoder.embed(ids_BL, mask_BL, constants)
    made = encoder.pooled(ids_BL, mask_BL, constants)
    return encoder.project(made.pooled_BD, made.noise_BD)
