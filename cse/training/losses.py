"""The training loss: a weighted sum of terms, such as NT-Xent and the hinge (PromCSE equation 12).

``losses_from`` builds it from group ``objective``, with what its terms need beside an encoder and their settings.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add
from pathlib import Path

import torch
from torch import nn

from cse.errors import CseError, in_terms_of
from cse.files import fingerprint
from cse.losses.contrastive_tension import ContrastiveTension
from cse.losses.distillation import Distillation
from cse.losses.energy_hinge import EnergyHinge
from cse.losses.label_proxies import LabelProxies
from cse.losses.masked_lm import MaskedLm
from cse.losses.matryoshka import Matryoshka
from cse.losses.mutual_information import MutualInformation
from cse.losses.nli_softmax import NliSoftmax
from cse.losses.nt_xent import NtXent
from cse.losses.replaced_tokens import ReplacedTokens
from cse.losses.self_guided import SelfGuided
from cse.losses.shared import Batch, Loss
from cse.losses.supervised_contrastive import SupervisedContrastive
from cse.model.backbone_files import find_backbone
from cse.model.checkpoint import identity_of
from cse.model.declared import is_checkpoint
from cse.model.mlm_head import MlmHead
from cse.model.sentence_encoder import SentenceEncoder
from cse.settings import objective as of
from cse.settings.objective import DistillationSettings, LossSettings, ObjectiveSettings
from cse.settings.train import TrainSettings
from cse.training.batch import TokenTable
from cse.training.corruption import corrupter_of


class Losses(nn.Module):
    """The total loss of a system.

    Args:
        own: for each source, the weights that replace those of the settings on its batches, by name; 0: not computed.
    """

    def __init__(self, terms: Mapping[str, Loss], own: Sequence[Mapping[str, float]] = ({},)) -> None:
        super().__init__()
        self.terms = nn.ModuleDict(terms)
        usual = {name: term.settings.weight for name, term in terms.items()}
        self.weights = [usual | dict(weights) for weights in own]

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return each unweighted term by name and the weighted sum as ``loss``, all scalars."""
        values, parts = {}, []
        for name, term, weight in self._of(batch):
            values[name] = term.forward(batch)  # called as a module, it would lose its type
            parts.append(weight * term.decay(batch.step) * values[name])
        return values | {"loss": reduce(add, parts)}

    def record(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the values of a batch's terms, with NaN for those that its source does without."""
        return dict.fromkeys(self.terms, math.nan) | dict(values)

    def after_update(self, batch: Batch) -> None:
        """Update state that follows the encoder, after the encoder's update with this batch."""
        for _, term, _ in self._of(batch):
            term.after_update(batch)

    def trainable(self) -> dict[str, nn.Parameter]:
        return {f"loss.{name}": weight for name, weight in self.named_parameters() if weight.requires_grad}

    def rates(self) -> dict[str, float]:
        """Return the learning rate of each weight that has its own, by name."""
        terms = self.named_terms()
        return {f"loss.terms.{name}.{part}": rate for name, term in terms for part, rate in term.rates().items()}

    def memory(self) -> dict[str, torch.Tensor]:
        """Return the terms' buffers by name; a resumed run needs them besides the trained weights."""
        return dict(self.named_buffers())

    def named_terms(self) -> list[tuple[str, Loss]]:
        return list(self.terms.items())  # type: ignore[arg-type]

    def _of(self, batch: Batch) -> list[tuple[str, Loss, float]]:
        """Return the terms of a batch's source with their weights."""
        weights = self.weights[batch.source]
        return [(name, term, weights[name]) for name, term in self.named_terms() if weights[name] != 0]


_CPU = torch.device("cpu")
_TEACHERS = "objective.distillation.teacher_folder"


def losses_from(
    objective: ObjectiveSettings,
    encoder: SentenceEncoder,
    train: TrainSettings,
    table: TokenTable,
    *,
    own: Sequence[Mapping[str, float]] = ({},),
    head: MlmHead | None = None,
    device: torch.device = _CPU,
    bf16: bool = False,
) -> Losses:
    """Build the whole loss."""

    def masked_lm() -> MaskedLm:
        assert head is not None  # noqa: S101 - MaskedLmSettings.head is set
        return MaskedLm(encoder, objective.masked_lm, head, train.seed)

    def replaced_tokens() -> ReplacedTokens:
        chosen = objective.replaced_tokens
        source = corrupter_of(chosen, train, encoder.transformer, table, device=device, bf16=bf16)
        return ReplacedTokens(encoder, chosen, source)

    def label_proxies() -> LabelProxies:
        assert table.labels is not None  # noqa: S101 - the settings allow this term only with labelled texts
        return LabelProxies(encoder, objective.label_proxies, int(table.labels.max()) + 1)

    def distillation() -> Distillation:
        return Distillation(encoder, objective.distillation, teachers_of(objective.distillation, encoder, train))

    made: dict[type[LossSettings], Callable[[], Loss]] = {
        of.NtXentSettings: lambda: NtXent(encoder, objective.nt_xent),
        of.MatryoshkaSettings: lambda: Matryoshka(encoder, objective.matryoshka),
        of.EnergyHingeSettings: lambda: EnergyHinge(encoder, objective.energy_hinge),
        of.MaskedLmSettings: masked_lm,
        of.ReplacedTokensSettings: replaced_tokens,
        of.ContrastiveTensionSettings: lambda: ContrastiveTension(encoder, objective.contrastive_tension),
        of.SelfGuidedSettings: lambda: SelfGuided(encoder, objective.self_guided),
        of.MutualInformationSettings: lambda: MutualInformation(encoder, objective.mutual_information),
        of.NliSoftmaxSettings: lambda: NliSoftmax(encoder, objective.nli_softmax),
        of.DistillationSettings: distillation,
        of.LabelProxiesSettings: label_proxies,
        of.SupervisedContrastiveSettings: lambda: SupervisedContrastive(encoder, objective.supervised_contrastive),
    }
    return Losses({name: made[type(settings)]() for name, settings in objective.terms().items()}, own)


# ---- teachers -----------------------------------------------------------------------------------------------------


def bare_teacher(encoder: SentenceEncoder) -> SentenceEncoder:
    """Return the bare backbone of an encoder as it is now; it shares the memory of weights that stay frozen."""
    backbone = encoder.transformer
    return SentenceEncoder(backbone.sibling() if encoder.frozen else copy.deepcopy(backbone))


def teachers_of(
    settings: DistillationSettings, encoder: SentenceEncoder, train: TrainSettings
) -> list[SentenceEncoder]:
    """Return the teachers of distillation: the bare backbone, the models in a folder (by name), or both."""
    bare = [] if settings.teacher == "folder" else [bare_teacher(encoder)]
    places = _places(Path(settings.teacher_folder)) if settings.reads_folder else []
    return bare + [_teacher(place, encoder, min(train.max_length, encoder.max_length)) for place in places]


def teachers_content(folder: Path) -> str:
    """Return a hash of everything read from the models in a folder."""
    return fingerprint({"teachers": [_content(place) for place in _places(folder)]})


def _places(folder: Path) -> list[Path]:
    def is_model(place: Path) -> bool:
        return is_checkpoint(place) or (place / "config.json").is_file()

    if is_model(folder):
        return [folder]
    inside = [path for path in sorted(folder.glob("*")) if path.is_dir() and not path.name.startswith(".")]
    for path in inside:
        if not is_model(path):
            raise CseError(f"{_TEACHERS}: {path} is no checkpoint or model; put only folders of models there")
    if not inside:
        raise CseError(
            f"{_TEACHERS}: no model in {folder}; put a checkpoint or model there, or several in folders of it"
        )
    return inside


def _content(place: Path) -> str:
    with in_terms_of(f"{_TEACHERS}: "):
        return identity_of(place) or find_backbone(str(place)).content()


def _teacher(place: Path, encoder: SentenceEncoder, longest: int) -> SentenceEncoder:
    with in_terms_of(f"{_TEACHERS}: "):
        teacher = SentenceEncoder.load(place)
    own, other = (each.backbone.tokenizer.get_vocab() for each in (encoder, teacher))
    if own != other:
        raise CseError(
            f"{_TEACHERS}: {place} has another vocabulary ({len(other)} tokens) than the backbone "
            f"{encoder.backbone.files.name} ({len(own)}); take a teacher of the same family"
        )
    if teacher.templates:
        raise CseError(f"{_TEACHERS}: {place} reads sentences in a template; take a teacher without one")
    if teacher.max_length < longest:
        raise CseError(
            f"{_TEACHERS}: {place} reads {teacher.max_length} tokens; set train.max_length to that or less, not "
            f"{longest}"
        )
    return teacher
