"""The training loss: a weighted sum of terms, such as NT-Xent and the hinge (PromCSE equation 12).

``losses_from`` builds it from group ``objective``, with what its terms need beside an encoder and their settings.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cse.data.store import STAND_INS, PreparedData
from cse.errors import CseError, in_terms_of
from cse.files import fingerprint
from cse.losses.collection import Collection, Targets
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
from cse.model.mlm_head import MlmHead
from cse.model.named import is_checkpoint
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.uses import role_for
from cse.settings.objective import CollectionSettings, DistillationSettings, ObjectiveSettings
from cse.settings.train import TrainSettings
from cse.training.collection import QueryPairs, document_vectors, pairs_of, teach, unit_vectors
from cse.training.corruption import source_of_corrupted
from cse.training.tokens import TokenTable


class Losses(nn.Module):
    """The total loss of a system.

    Args:
        own: for each source, the weights that replace those of terms on its batches, by name; 0: not computed.
    """

    def __init__(self, terms: Mapping[str, Loss], own: Sequence[Mapping[str, float]] = ()) -> None:
        super().__init__()
        self.terms = nn.ModuleDict(terms)
        self.own = own

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return each unweighted term by name and the weighted sum as ``loss``, all scalars."""
        values, loss = {}, batch.projected_XD.new_zeros(())
        for name, term, own in self._of(batch):
            values[name] = term(batch)
            loss = loss + term.weight(batch.step, own) * values[name]
        return values | {"loss": loss}

    def record(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the values of a batch's terms, with NaN for those that its source does without."""
        return dict.fromkeys(self.terms, math.nan) | dict(values)

    def after_update(self, batch: Batch) -> None:
        """Update state that follows the encoder, after the encoder's update with this batch."""
        for _, term, _ in self._of(batch):
            term.after_update(batch)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the loss's own trainable weights, by name."""
        return {f"loss.{name}": weight for name, weight in self.named_parameters() if weight.requires_grad}

    def rates(self) -> dict[str, float]:
        """Return the learning rate of each weight that has its own, by name."""
        terms = self.named_terms()
        return {f"loss.terms.{name}.{part}": rate for name, term in terms for part, rate in term.rates().items()}

    def memory(self) -> dict[str, torch.Tensor]:
        """Return the terms' buffers by name; a resumed run needs them besides the trained weights."""
        return dict(self.named_buffers())

    def named_terms(self) -> list[tuple[str, Loss]]:
        """Return the terms by settings key."""
        return list(self.terms.items())  # type: ignore[arg-type]

    def _of(self, batch: Batch) -> list[tuple[str, Loss, float | None]]:
        """Return the terms of a batch's source with the weight that replaces each one's, if any."""
        own = self.own[batch.source] if self.own else {}
        return [(name, term, own.get(name)) for name, term in self.named_terms() if own.get(name) != 0]


_CPU = torch.device("cpu")
_TEACHERS, _TEACHER = "objective.distillation.teacher_folder", "objective.collection.teacher_folder"


def losses_from(
    objective: ObjectiveSettings,
    encoder: SentenceEncoder,
    train: TrainSettings,
    table: TokenTable,
    *,
    own: Sequence[Mapping[str, float]] = (),
    head: MlmHead | None = None,
    sources: Sequence[PreparedData] = (),
    corrupted: Path | None = None,
    device: torch.device = _CPU,
    bf16: bool = False,
) -> Losses:
    """Build the whole loss."""

    def masked_lm() -> MaskedLm:
        assert head is not None  # noqa: S101 - MaskedLmSettings.head is set
        return MaskedLm(encoder, objective.masked_lm, head, train.seed)

    def replaced_tokens() -> ReplacedTokens:
        chosen = objective.replaced_tokens
        source = source_of_corrupted(chosen, train, encoder.transformer, table, corrupted, device, bf16=bf16)
        return ReplacedTokens(encoder, chosen, source)

    def label_proxies() -> LabelProxies:
        assert table.labels is not None  # noqa: S101 - the settings allow this term only with labelled texts
        return LabelProxies(encoder, objective.label_proxies, int(table.labels.max()) + 1)

    def distillation() -> Distillation:
        return Distillation(encoder, objective.distillation, teachers_of(objective.distillation, encoder, train))

    def collection() -> Collection:
        made = collection_from(encoder, sources, objective.collection)
        sizes = [len(data.train) for data in sources]
        return Collection(encoder, objective.collection, made.documents, made.targets, sizes)

    made: dict[str, Callable[[], Loss]] = {
        "nt_xent": lambda: NtXent(encoder, objective.nt_xent),
        "matryoshka": lambda: Matryoshka(encoder, objective.matryoshka),
        "energy_hinge": lambda: EnergyHinge(encoder, objective.energy_hinge),
        "masked_lm": masked_lm,
        "replaced_tokens": replaced_tokens,
        "contrastive_tension": lambda: ContrastiveTension(encoder, objective.contrastive_tension),
        "self_guided": lambda: SelfGuided(encoder, objective.self_guided),
        "mutual_information": lambda: MutualInformation(encoder, objective.mutual_information),
        "nli_softmax": lambda: NliSoftmax(encoder, objective.nli_softmax),
        "distillation": distillation,
        "label_proxies": label_proxies,
        "supervised_contrastive": lambda: SupervisedContrastive(encoder, objective.supervised_contrastive),
        "collection": collection,
    }
    return Losses({name: made[name]() for name in objective.terms()}, own)


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
    places = _places(Path(settings.teacher_folder), _TEACHERS) if settings.reads_folder else []
    return bare + [_teacher(place, encoder, min(train.max_length, encoder.max_length)) for place in places]


def teachers_content(folder: Path, key: str = _TEACHERS) -> str:
    """Return a hash of everything read from the models in a folder, which the setting ``key`` names."""
    return fingerprint({"teachers": [_content(place, key) for place in _places(folder, key)]})


def _places(folder: Path, key: str) -> list[Path]:
    if _is_model(folder):
        return [folder]
    inside = [path for path in sorted(folder.glob("*")) if path.is_dir() and not path.name.startswith(".")]
    for path in inside:
        if not _is_model(path):
            raise CseError(f"{key}: {path} is no checkpoint or model; put only folders of models there")
    if not inside:
        raise CseError(f"{key}: no model in {folder}; put a checkpoint or model there, or several in folders of it")
    return inside


def _is_model(folder: Path) -> bool:
    return is_checkpoint(folder) or (folder / "config.json").is_file()


def _content(place: Path, key: str) -> str:
    with in_terms_of(f"{key}: "):
        return identity_of(place) if is_checkpoint(place) else find_backbone(str(place)).content()


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


# ---- a collection of documents ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaughtCollection:
    """Queries, the documents they are trained against, and what a teacher thinks of these.

    Attributes:
        documents: unit vectors of the documents, the bare backbone's, float32 ``(N, D)``.
        queries: the teacher's unit vectors of the queries ``(n, D')``.
    """

    pairs: QueryPairs
    documents: NDArray[np.float32]
    queries: NDArray[np.float32]
    targets: Targets


def collection_from(
    encoder: SentenceEncoder, sources: Sequence[PreparedData], settings: CollectionSettings, most: int | None = None
) -> TaughtCollection:
    """Encode the documents, let the teacher score them for each query, and say how many there are.

    Args:
        most: queries, at most, picked at even intervals; None: all. The documents of all rows stay.
    """
    if encoder.documents is None:
        raise CseError("objective.collection: trains queries alone; set prompt.side: query")
    for data in sources:
        if data.view != "pairs":
            raise CseError(
                f"{data.rows_file}: contains {data.view}, but queries are trained on pairs of a query and its "
                "document; run `cse prepare` with data.view: pairs, or documents and data.pairs: [stand_ins]"
            )
    pairs = pairs_of([(data.train, data.made_from == STAND_INS) for data in sources], sources[0].documents)
    if len(pairs.documents) < 2:
        raise CseError(f"{sources[0].rows_file}: one document is no collection; prepare two or more")
    if most is not None and len(pairs.queries) > most:
        pairs = pairs.only(np.linspace(0, len(pairs.queries) - 1, most, dtype=np.int64))
    bar = sys.stderr.isatty()
    click.echo(f"{len(pairs.queries):,} queries against {len(pairs.documents):,} documents", err=True)
    bare = encoder.documents
    documents = document_vectors(bare, pairs.documents, bar)
    teacher, taught = bare, documents
    if settings.teacher_folder is not None:
        with in_terms_of(f"{_TEACHER}: "):
            teacher = SentenceEncoder.load(Path(settings.teacher_folder))
        taught = document_vectors(teacher, pairs.documents, bar)
    queries = unit_vectors(teacher, pairs.queries, role_for("query", teacher.texts), bar)
    return TaughtCollection(pairs, documents, queries, teach(pairs, queries, taught))
