"""Build the parts of a system with default options, except for those that a test overrides."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from cse.choices import ReadOut
from cse.errors import CseError
from cse.model.backbone import Backbone, load_backbone
from cse.model.backbone_files import find_backbone
from cse.model.flow import Flow, fit_flow
from cse.model.passes import Constants
from cse.model.prompts import Prompt
from cse.model.sentence_encoder import SentenceEncoder
from cse.model.template import Template, make_template
from cse.settings.train import AugmentSettings, TrainSettings
from cse.training import loop
from cse.training.batch import TokenTable
from cse.training.losses import Losses
from cse.training.state import RunState

PLAIN = AugmentSettings()


class Cut(NamedTuple):
    """How a batch is cut into slices, see ``TrainSettings``."""

    row_groups: int | None
    mini_batch_size: int | None


@dataclass(frozen=True)
class Plan:
    """What the loop follows."""

    train: TrainSettings
    augment: AugmentSettings
    bf16: bool

    def factor(self, step: int, steps: int) -> float:
        return loop.rate_factor(self.train, step, steps)


def train(
    encoder: SentenceEncoder,
    losses: Losses,
    table: TokenTable,
    plan: Plan,
    *,
    more: Sequence[TokenTable] = (),
    **options: Any,
) -> RunState:
    """Run the loop on a plan."""
    tables, augment = [table, *more], plan.augment
    return loop.train(encoder, losses, tables, plan.train, augment=augment, bf16=plan.bf16, **options)


def backbone_of(folder: Path | str) -> Backbone:
    """The backbone of a folder."""
    return load_backbone(find_backbone(str(folder)))


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


def prompted(
    backbone,
    kind: str | None = "key_value",
    length: int = 5,
    *,
    dropout: float = 0.0,
    init_std: float = 0.7,
    **options: Any,
) -> SentenceEncoder:
    """An encoder with a prompt that is far from zero, or with none, the same on every call."""
    torch.manual_seed(3)
    prompt = None if kind is None else new_prompt(kind, backbone, length=length, dropout=dropout, init_std=init_std)
    return sentence_encoder(backbone, prompt, **options)


def moved(encoder: SentenceEncoder, by: float = 0.1) -> SentenceEncoder:
    """Move every trained weight from where it starts."""
    with torch.no_grad():
        for weight in encoder.trainable().values():
            weight.add_(by * torch.randn_like(weight))
    return encoder


def new_template(text: str, backbone, *, trained: bool = False, end_with_period: bool = False) -> Template:
    return make_template(text, backbone, trained=trained, end_with_period=end_with_period)


def new_flow(vectors, **options: Any) -> Flow:
    return fit_flow(vectors, **({"seed": 42} | options))


def new_plan(**changes: Any) -> Plan:
    """Plan with the default settings of ``train``, in float32 and without slicing the batch."""
    return replan(Plan(TrainSettings(row_groups=1), PLAIN, bf16=False), **changes)


def replan(plan: Plan, **changes: Any) -> Plan:
    """Return a plan with other settings of ``train``, another ``cut``, ``augment`` or ``bf16``."""
    own = {name: changes.pop(name) for name in ("augment", "bf16") if name in changes}
    cut = changes.pop("cut")._asdict() if "cut" in changes else {}
    return replace(plan, train=TrainSettings(**plan.train.model_dump() | cut | changes), **own)


def refusal(call: Callable[..., object], *given: Any, **options: Any) -> str:
    """The one line with which a call is refused."""
    with pytest.raises(CseError) as caught:
        call(*given, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def slopes(loss: Callable[[], torch.Tensor], weight: torch.Tensor, step: float) -> tuple[float, float]:
    """The slope of a loss along a random direction of a weight: by autograd, and by differences of fourth order."""
    along = torch.randn(weight.shape, generator=torch.Generator().manual_seed(5), dtype=weight.dtype)
    (gradient,) = torch.autograd.grad(loss(), weight)
    start, found = weight.detach().clone(), []
    with torch.no_grad():
        for factor in (1, -1, 2, -2, 0):
            weight.copy_(start + factor * step * along)
            found.append(loss().item())
    near, far = (found[0] - found[1]) / (2 * step), (found[2] - found[3]) / (4 * step)
    return (gradient * along).sum().item(), (4 * near - far) / 3


def embed(encoder: SentenceEncoder, ids_BL: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
    """Embed tokenised rows as at inference or, in training mode, as the loss reads them."""
    noisy = encoder.denoise == "always" or (encoder.training and encoder.denoise == "train_only")
    noise_TND = encoder.noise(ids_BL.shape[1] + 1) if noisy else None
    constants = Constants(encoder.prefix(len(ids_BL)), noise_TND)
    if not encoder.training:
        return encoder.embed(ids_BL, mask_BL, constants)
    made = encoder.pooled(ids_BL, mask_BL, constants)
    return encoder.project(made.pooled_BD, made.noise_BD)
