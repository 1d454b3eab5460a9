"""Group ``objective``: the terms of the loss."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from cse.settings.groups.group import Group, NonNegative, Positive, Share, Temperature


class TermSettings(Group):
    """A term of the loss. Its class variables declare what it needs; every check reads them here.

    Attributes:
        views: kinds of rows (``data.view``) that it can be trained on.
        rows: what it needs of them, in words.
        copies: whether it compares copies of a sentence; others read the first alone.
        compares: whether it compares sentences, so that the dev pairs can judge it.
        head: whether it needs the backbone's MLM head.
    """

    views: ClassVar[tuple[str, ...]] = ("sentences", "pairs", "triplets")
    rows: ClassVar[str] = "unlabelled rows"
    copies: ClassVar[bool] = True
    compares: ClassVar[bool] = True
    head: ClassVar[bool] = False

    weight: NonNegative = Field(0.0, description="Weight of the term in the loss; 0 leaves it out.")

    @property
    def least_rows(self) -> int:
        """Rows below which its loss is constant: contrasted rows need another one."""
        return 2 if self.compares else 1


class NtXentSettings(TermSettings):
    """Contrastive cross-entropy (SimCSE equations 1 and 5)."""

    weight: NonNegative = Field(1.0, description="Weight of the term in the loss; 0 leaves it out.")
    temperature: Temperature = Field(0.05, description="Divides the cosines.")
    hard_negative_weight: float = Field(
        0.0, description="Added to the logit of a row's own hard negative (the log of its weight)."
    )
    two_views: bool = Field(
        False, description="Both directions, and negatives from both copies (SimCLR's form: ConSERT, Mirror-BERT)."
    )
    queue: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="Further negatives: embeddings of earlier batches by a momentum copy (ESimCSE); 0: none.",
    )
    momentum: Share = Field(0.995, description="`queue`: what the momentum copy keeps of itself at each update.")
    queue_projector: Literal["following", "current"] = Field(
        "following",
        description="`queue`: whether the momentum copy has a projector of its own that follows, or uses the trained "
        "one as it is (ESimCSE's released code).",
    )


class EnergyHingeSettings(TermSettings):
    """Energy-based hinge on raw cosines (PromCSE equation 11); needs triplets."""

    views = ("triplets",)
    rows = "hard negatives"

    weight: NonNegative = Field(10.0, description="Weight of the term in the loss; 0 leaves it out.")
    margin: float = Field(0.2, ge=0.0, le=2.0, description="Cosine by which a positive must beat every negative.")


class MaskedLmSettings(TermSettings):
    """Masked language modelling beside the contrastive loss (DCPCSE); needs a backbone with an MLM head."""

    copies = False
    compares = False
    head = True

    weight: NonNegative = Field(0.0, description="Weight of the term at the start; 0 leaves it out.")
    mask_share: Share = Field(0.15, description="Share of tokens to predict (80 % mask, 10 % random, 10 % unchanged).")
    decay_rate: float = Field(0.95, gt=0.0, le=1.0, description="The weight is multiplied by this ...")
    decay_steps: Positive = Field(100, description="... every so many steps (real-valued exponent).")
    train_head: bool = Field(
        False, description="Train the head, untied from the word vectors, as the released code does; else it is frozen."
    )


class ReplacedTokensSettings(TermSettings):
    """Conditional replaced-token detection (DiffCSE, D2CSE)."""

    compares = False

    weight: NonNegative = Field(0.0, description="Weight of the term in the loss (lambda); 0 leaves it out.")
    discriminator: Literal["shared", "frozen", "copy"] = Field(
        "shared",
        description="`shared`: the frozen backbone with the same prompts (D2CSE); `frozen`: without prompts (ablation "
        "a); `copy`: a trained copy of the backbone without prompts (DiffCSE, ablation b).",
    )
    condition: bool = Field(
        True, description="Give the discriminator the sentence embedding in the place of `[CLS]`; false: ablation c."
    )
    copy_learning_rate: float | None = Field(
        None, gt=0.0, description="`discriminator: copy`: its learning rate; null: train.learning_rate."
    )
    generator: str = Field(
        "distilbert/distilbert-base-uncased",
        description="Masked language model with the backbone's vocabulary that proposes tokens, by hub id; `folder`: "
        "the one in generator_folder; `unigram`: tokens drawn by their frequency in the training text, where no model "
        "can be had.",
    )
    generator_folder: str = Field(
        "data/raw/generator",
        description="`generator: folder`: folder of the model; the pipeline trains again when it changes.",
    )
    generator_revision: str = Field("main", description="Branch, tag or commit of the generator on the hub.")
    generator_dropout: bool = Field(
        True, description="Dropout on in the generator, as in the released code; off with `corruption: prepared`."
    )
    corruption: Literal["on_the_fly", "prepared"] = Field(
        "on_the_fly", description="Corrupt each batch, or everything once before training (one corruption per epoch)."
    )
    mask_share: Share = Field(0.3, description="Share of tokens that are masked for the generator.")
    choice: Literal["argmax", "sample"] = Field(
        "argmax", description="The generator's likeliest token (released code), or one drawn from its distribution."
    )
    positions: Literal["all", "masked"] = Field(
        "all", description="Take the generator's token at every position (released code) or at masked ones only."
    )
    protect_special: bool = Field(False, description="Leave special tokens besides `[CLS]` as they are.")
    normalize: Literal["positions", "tokens", "sum"] = Field(
        "positions",
        description="Mean over all positions, padded to the batch's longest row (released code), mean over real "
        "tokens, or sum over a sentence's tokens (D2CSE equation 2).",
    )
    prompt_draw: Literal["shared", "separate"] = Field(
        "shared", description="Whether both passes see the same prompt dropout or each draws its own."
    )

    @property
    def corrupts_beforehand(self) -> bool:
        """Whether rows are corrupted once before training."""
        return self.weight > 0 and self.corruption == "prepared"

    @property
    def generator_model(self) -> str:
        """The generator by hub id or folder."""
        return self.generator_folder if self.generator == "folder" else self.generator

    @property
    def reads_generator(self) -> bool:
        """Whether training itself asks a masked language model for tokens."""
        return self.weight > 0 and self.corruption == "on_the_fly" and self.generator != "unigram"


class ContrastiveTensionSettings(TermSettings):
    """Contrastive Tension: two copies, dot products, 1 positive and 7 negatives (Carlsson et al. 2021)."""

    views = ("sentences",)
    rows = "single sentences"
    copies = False

    group: int = Field(8, ge=2, description="Rows of one positive and its negatives; train.batch_size is a multiple.")

    @property
    def least_rows(self) -> int:
        """A whole group."""
        return self.group


class SelfGuidedSettings(TermSettings):
    """SG-OPT: layers of a frozen clone as targets (Kim et al. 2021)."""

    copies = False

    temperature: Temperature = Field(0.01, description="Divides the cosines.")
    projection: Positive = Field(4096, le=65_536, description="Width of the projection.")
    regularizer: NonNegative = Field(0.1, description="Weight of the squared distance to the initial weights.")


class MutualInformationSettings(TermSettings):
    """IS-BERT: mutual information between tokens and sentence; needs pooler.kind `cnn` (Zhang et al. 2020)."""

    copies = False

    weight: NonNegative = Field(0.0, description="Weight of the term; 0 leaves it out.")


class NliSoftmaxSettings(TermSettings):
    """SBERT: classify entailment, neutral, contradiction; needs data.view `labelled` (Reimers and Gurevych 2019)."""

    views = ("labelled",)
    rows = "labels"

    weight: NonNegative = Field(0.0, description="Weight of the term; 0 leaves it out.")

    @property
    def least_rows(self) -> int:
        """It contrasts no rows."""
        return 1


class ObjectiveSettings(Group):
    """The terms of the loss."""

    nt_xent: NtXentSettings = NtXentSettings()
    energy_hinge: EnergyHingeSettings = EnergyHingeSettings()
    masked_lm: MaskedLmSettings = MaskedLmSettings()
    replaced_tokens: ReplacedTokensSettings = ReplacedTokensSettings()
    contrastive_tension: ContrastiveTensionSettings = ContrastiveTensionSettings()
    self_guided: SelfGuidedSettings = SelfGuidedSettings()
    mutual_information: MutualInformationSettings = MutualInformationSettings()
    nli_softmax: NliSoftmaxSettings = NliSoftmaxSettings()

    def terms(self) -> dict[str, TermSettings]:
        """Return the terms with a weight above 0 by name, in order."""
        terms = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: term for name, term in terms.items() if term.weight > 0}

    @property
    def first(self) -> str:
        """Name of the first term."""
        return next(iter(self.terms()))

    @property
    def needing_head(self) -> list[str]:
        """Names of the terms that need the backbone's MLM head."""
        return [name for name, term in self.terms().items() if term.head]

    @property
    def comparing(self) -> list[str]:
        """Names of the terms that compare sentences; dev pairs cannot judge what the others, over tokens, train."""
        return [name for name, term in self.terms().items() if term.compares]

    @property
    def copies(self) -> int | None:
        """How many copies of a sentence the loss reads: 1 where no term compares copies, None for all."""
        return None if any(term.copies for term in self.terms().values()) else 1

    @property
    def least_rows(self) -> int:
        """Rows below which the loss is constant."""
        return min(self.terms()[name].least_rows for name in self.comparing) if self.comparing else 1

    @model_validator(mode="after")
    def _check(self) -> ObjectiveSettings:
        if not self.terms():
            raise ValueError("nt_xent.weight: every term of the objective has weight 0; give one a weight above 0")
        return self
