"""Group ``objective``: the settings of every loss, and what each needs of the rows.

Each class below belongs to the loss of its name in ``cse/losses``. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from cse.settings.group import NonNegative, Positive, SettingsGroup, Share, Temperature


class LossSettings(SettingsGroup):
    """A loss. Its class variables declare what it needs; all checks read them.

    Attributes:
        views: kinds of rows (``data.view``) it can train on.
        rows: the rows it needs, in words for error messages.
        copies: whether it compares copies of a sentence; other losses read only the first copy.
        compares: whether it compares sentences; only then can dev pairs judge it.
        contrasts: whether the other rows of a batch are its negatives.
        head: whether it needs the backbone's MLM head.
        labels: whether it needs the label of each row's texts (``data.view: categories``); it reads the main source.
    """

    views: ClassVar[tuple[str, ...]] = ("sentences", "pairs", "triplets")
    rows: ClassVar[str] = "unlabelled rows"
    copies: ClassVar[bool] = True
    compares: ClassVar[bool] = True
    contrasts: ClassVar[bool] = True
    head: ClassVar[bool] = False
    labels: ClassVar[bool] = False

    weight: NonNegative = 0.0
    """Weight of this term in the loss; 0 disables it."""

    @property
    def least_rows(self) -> int:
        """Minimum rows for a loss that is not constant."""
        return 2 if self.compares and self.contrasts else 1


class LabelLossSettings(LossSettings):
    """A loss that reads the label of each row's texts."""

    views = ("pairs", "triplets")
    rows = "labelled texts (data.view: categories)"
    labels = True


class NtXentSettings(LossSettings):
    """Contrastive cross-entropy (SimCSE equations 1 and 5)."""

    weight: NonNegative = 1.0
    """Weight of this term in the loss; 0 disables it."""
    temperature: Temperature = 0.05
    """Softmax temperature: cosines are divided by it."""
    hard_negative_weight: float = 0.0
    """Added to the logit of each row's own hard negative (log of its weight)."""
    two_views: bool = False
    """Symmetric loss with negatives from both copies, as in SimCLR (ConSERT, Mirror-BERT)."""
    queue: int = Field(0, ge=0, le=1_000_000)
    """Extra negatives: number of past embeddings to keep from a momentum encoder (ESimCSE); 0: none."""
    queue_projector: Literal["following", "current"] = "following"
    """`queue`: projector of the momentum encoder: its own, which follows the trained one (`following`), or the trained
    one itself (`current`, ESimCSE's released code)."""


class MatryoshkaSettings(LossSettings):
    """NT-Xent on the first numbers of each vector, so that vectors may be cut (Kusupati et al. 2022)."""

    widths: list[Positive] = Field([256, 128, 64], min_length=1)
    """Numbers of dimensions to train for, each below the embedding's; `encode` then offers them."""


class EnergyHingeSettings(LossSettings):
    """Energy-based hinge loss on raw cosines (PromCSE equation 11); needs triplets."""

    views = ("triplets",)
    rows = "hard negatives"

    weight: NonNegative = 10.0
    """Weight of this term in the loss; 0 disables it."""
    margin: float = Field(0.2, ge=0.0, le=2.0)
    """Margin by which the cosine of the positive must exceed that of every negative."""


class MaskedLmSettings(LossSettings):
    """Auxiliary masked language modelling loss (DCPCSE); needs a backbone with an MLM head."""

    copies = False
    compares = False
    head = True

    weight: NonNegative = 0.0
    """Initial weight of this term in the loss; 0 disables it."""
    decay_rate: float = Field(0.95, gt=0.0, le=1.0)
    """Factor by which the weight decays every 100 steps; decay is continuous (real-valued exponent)."""
    train_head: bool = False
    """Train the MLM head, untied from the word embeddings (released code); false: freeze it."""


class ReplacedTokensSettings(LossSettings):
    """Conditional replaced-token detection (DiffCSE, D2CSE)."""

    compares = False

    weight: NonNegative = 0.0
    """Weight of this term in the loss (lambda); 0 disables it."""
    discriminator: Literal["shared", "frozen", "copy"] = "shared"
    """`shared`: the frozen backbone with the same prompts (D2CSE); `frozen`: the frozen backbone without prompts
    (ablation a); `copy`: a trained copy of the backbone without prompts (DiffCSE, ablation b)."""
    condition: bool = True
    """Feed the sentence embedding to the discriminator in place of `[CLS]`; false: ablation c."""
    copy_learning_rate: float | None = Field(None, gt=0.0)
    """Learning rate of the discriminator with `discriminator: copy`; null: `train.learning_rate`."""
    generator: str = "distilbert/distilbert-base-uncased"
    """Hub id of the masked language model that proposes tokens; it must share the backbone's vocabulary. `folder`: the
    model in `generator_folder`; `unigram`: draw tokens by their frequency in the training text, without a model."""
    generator_folder: str = "data/raw/generator"
    """Model folder for `generator: folder`; the pipeline retrains when it changes."""
    mask_share: Share = 0.3
    """Share of tokens masked for the generator."""
    choice: Literal["argmax", "sample"] = "argmax"
    """Take the generator's most likely token (released code) or sample from its distribution."""
    positions: Literal["all", "masked"] = "all"
    """Where to use the generator's tokens: every position (released code) or masked ones only."""
    protect_special: bool = False
    """Keep all special tokens unchanged; false: only `[CLS]`."""
    normalize: Literal["positions", "tokens", "sum"] = "positions"
    """`positions`: mean over all positions, padding to the batch's longest row included (released code); `tokens`: mean
    over real tokens; `sum`: sum over each sentence's tokens (D2CSE equation 2)."""

    @property
    def generator_model(self) -> str:
        """Hub id or folder of the generator."""
        return self.generator_folder if self.generator == "folder" else self.generator

    @property
    def reads_generator(self) -> bool:
        """Whether a masked language model proposes tokens during training."""
        return self.weight > 0 and self.generator != "unigram"


class ContrastiveTensionSettings(LossSettings):
    """Contrastive Tension: two encoder copies, dot products, 1 positive and 7 negatives (Carlsson et al. 2021)."""

    views = ("sentences",)
    rows = "single sentences"
    copies = False
    group: ClassVar[int] = 8  # rows of one positive and its negatives (their section 4.1)

    @property
    def least_rows(self) -> int:
        """One whole group."""
        return self.group


class SelfGuidedSettings(LossSettings):
    """SG-OPT: self-guidance by the layers of a frozen clone (Kim et al. 2021)."""

    copies = False


class MutualInformationSettings(LossSettings):
    """IS-BERT: mutual information between tokens and sentence; needs pooler.kind `cnn` (Zhang et al. 2020)."""

    copies = False


class NliSoftmaxSettings(LossSettings):
    """SBERT: classify entailment, neutral, contradiction; needs data.view `labelled` (Reimers and Gurevych 2019)."""

    views = ("labelled",)
    rows = "labels"
    contrasts = False


class DistillationSettings(LossSettings):
    """Learn a teacher's similarities between the rows of a batch (Fang et al. 2021)."""

    copies = False

    temperature: Temperature = 0.05
    """Softmax temperature: the cosines of both are divided by it."""
    teacher: Literal["backbone", "folder", "both"] = "backbone"
    """`backbone`: the bare backbone, so that the model stays near it; `folder`: the models in `teacher_folder`; `both`:
    those and the backbone. Similarities of several are averaged."""
    teacher_folder: str = "data/raw/teacher"
    """`teacher: folder`: a checkpoint or model with the backbone's tokenizer, or a folder of several; the pipeline
    retrains when it changes."""

    @property
    def reads_folder(self) -> bool:
        """Whether the teachers are models in a folder."""
        return self.weight > 0 and self.teacher != "backbone"


class LabelProxiesSettings(LabelLossSettings):
    """A trained vector per label, the right one nearest: needs data.view `categories` (Zhai and Wu 2019)."""

    contrasts = False


class SupervisedContrastiveSettings(LabelLossSettings):
    """Every text of the label in the batch is a positive: needs data.view `categories` (Khosla et al. 2020)."""


class CollectionSettings(LossSettings):
    """Rank all documents as a teacher does: for queries, by which `post.kind: query_map` is fitted, too."""

    views = ("pairs",)
    rows = "pairs of a query and its document"
    copies = False
    contrasts = False  # the documents are, not the rows


class ObjectiveSettings(SettingsGroup):
    """The terms of the loss."""

    nt_xent: NtXentSettings = NtXentSettings()
    matryoshka: MatryoshkaSettings = MatryoshkaSettings()
    energy_hinge: EnergyHingeSettings = EnergyHingeSettings()
    masked_lm: MaskedLmSettings = MaskedLmSettings()
    replaced_tokens: ReplacedTokensSettings = ReplacedTokensSettings()
    contrastive_tension: ContrastiveTensionSettings = ContrastiveTensionSettings()
    self_guided: SelfGuidedSettings = SelfGuidedSettings()
    mutual_information: MutualInformationSettings = MutualInformationSettings()
    nli_softmax: NliSoftmaxSettings = NliSoftmaxSettings()
    distillation: DistillationSettings = DistillationSettings()
    label_proxies: LabelProxiesSettings = LabelProxiesSettings()
    supervised_contrastive: SupervisedContrastiveSettings = SupervisedContrastiveSettings()
    collection: CollectionSettings = CollectionSettings()

    def terms(self) -> dict[str, LossSettings]:
        """Return the losses with a positive weight, by name and in order."""
        return {name: loss for name, loss in self if loss.weight > 0}

    def with_weights(self, weights: Mapping[str, float]) -> Self:
        """Return the objective with other weights of some losses, by name; unlike in a file, all may be 0."""
        changed = {name: loss.model_copy(update={"weight": weights[name]}) for name, loss in self if name in weights}
        return self.model_copy(update=changed)

    def of_further(self, weights: Mapping[str, float] | None) -> Self:
        """Return the objective of a source besides the main one: its own weights, no term that reads labels."""
        without = {name: 0.0 for name, term in self.terms().items() if term.labels}
        return self.with_weights({**(weights or {}), **without})

    def over(self, sources: Iterable[Mapping[str, float]]) -> Self:
        """Return the objective with every term that is trained, given what each further source replaces."""
        weights: dict[str, float] = {}
        for terms in sources:
            weights = {name: weight for name, weight in terms.items() if weight > 0} | weights
        return self.with_weights(weights | {name: term.weight for name, term in self.terms().items()})

    @property
    def first(self) -> str:
        """Name of the first term."""
        return next(iter(self.terms()))

    @property
    def comparing(self) -> list[str]:
        """Names of the terms that compare sentences; dev pairs cannot judge the others, which work on tokens."""
        return [name for name, term in self.terms().items() if term.compares]

    @property
    def copies(self) -> int | None:
        """Copies of each sentence the loss reads: 1 if no term compares copies, None for all."""
        return None if any(term.copies for term in self.terms().values()) else 1

    @property
    def least_rows(self) -> int:
        """Minimum rows for a loss that is not constant."""
        return min(self.terms()[name].least_rows for name in self.comparing) if self.comparing else 1

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.terms():
            raise ValueError("nt_xent.weight: every term of the objective has weight 0; give one a weight above 0")
        return self
