"""The one tree of settings: what ``params.yaml`` may say, with types, ranges and units.

Every class is frozen and refuses unknown keys. A stage receives the groups that it declares in ``dvc.yaml`` and
nothing else; below a builder no code sees a settings object.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
LARGEST = 2**32 - 1  # a seed of NumPy's RandomState; no other whole number needs more
_UNREADABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
# below it the rounding of a cosine in float32, 6e-8, decides the loss, and soon its gradient has no finite norm
Temperature = Annotated[float, Field(ge=1e-6)]


class Group(BaseModel):
    """A group of settings: frozen, strict about types, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _check_value(cls, value: Any) -> Any:
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, int) and part > LARGEST:
                raise PydanticCustomError("too_large", f"whole numbers go up to {LARGEST}")
            if isinstance(part, str) and not part.strip():
                raise PydanticCustomError("blank", "is blank; give a value or leave the key out")
            if isinstance(part, str) and _UNREADABLE.search(part):
                raise PydanticCustomError("control", "holds a control character; take it out")
        return value


class DataSettings(Group):
    """Where text comes from and what ``prepare`` makes of it."""

    source: Literal["sample", "files", "hub"] = Field(
        "sample", description="`sample` is generated, `files` reads the paths below, `hub` downloads."
    )
    view: Literal["sentences", "pairs", "triplets", "labelled"] = Field(
        "triplets",
        description="What a training row is: a sentence (its copy is the positive), a pair, a triplet, or two "
        "sentences with an NLI label (entailment, neutral, contradiction).",
    )
    train_path: str = Field(
        "data/raw/train", description="`files`: a txt, csv, tsv, jsonl or parquet file, or a folder that holds one."
    )
    dev_path: str = Field(
        "data/raw/dev", description="`files`: scored pairs for checkpoint selection; an empty folder means STS-B dev."
    )
    evaluation_path: str = Field(
        "data/raw/evaluation", description="`files` and `hub`: SentEval's `downstream` folder, or scored pairs."
    )
    cxc_path: str = Field(
        "data/raw/cxc", description="`files` and `hub`: CSV of CxC-STS with its captions, or a folder that may hold it."
    )
    columns: list[str] | None = Field(
        None, description="Names of the columns to read, in the order of the view; null: by their usual names."
    )
    encoding: str = Field("utf-8", description="Encoding of text files.")
    score_range: list[float] = Field([0.0, 5.0], description="Lowest and highest gold score of the user's own pairs.")
    hub_id: str = Field("princeton-nlp/datasets-for-simcse", description="`hub`: id of the data set.")
    hub_file: str | None = Field(
        "nli_for_simcse.csv", description="`hub`: file inside the data set's repository; null: its default split."
    )
    hub_revision: str = Field("main", description="`hub`: branch, tag or commit.")
    hub_split: str = Field("train", description="`hub`: split, where no file is named.")
    max_rows: Positive | None = Field(
        None, description="Rows to keep, drawn by data.seed from all that cleaning leaves; null: all."
    )
    max_words: Positive = Field(
        1000, description="Sentences with more words, or more than 100,000 characters, are dropped and counted."
    )
    drop_duplicates: bool = Field(True, description="Drop rows that occurred before (same text after trimming).")
    drop_evaluation_overlap: bool = Field(
        True, description="Drop training rows with a sentence of the evaluation data (case and punctuation ignored)."
    )
    sample_rows: Positive = Field(3000, le=10_000_000, description="`sample`: rows to generate.")
    seed: int = Field(42, ge=0, description="Seed of the generated text, and of the draw of max_rows.")

    @model_validator(mode="after")
    def _check(self) -> DataSettings:
        if len(self.score_range) != 2 or not self.score_range[0] < self.score_range[1]:
            raise ValueError("score_range: give two numbers, the lower first")
        if self.columns is not None and len(self.columns) != VIEW_WIDTH[self.view]:
            raise ValueError(
                f"columns: view {self.view!r} needs {VIEW_WIDTH[self.view]} column names, {len(self.columns)} given"
            )
        if self.columns is not None and len(set(self.columns)) < len(self.columns):
            raise ValueError(f"columns: one column cannot stand for two, found {', '.join(self.columns)}")
        if self.encoding != "utf-8":
            try:
                "".encode(self.encoding)
            except LookupError:
                raise ValueError(f"encoding: {self.encoding!r} is not an encoding that Python knows") from None
        return self


VIEW_WIDTH = {"sentences": 1, "pairs": 2, "triplets": 3, "labelled": 3}


class BackboneSettings(Group):
    """The pretrained language model under the prompts."""

    name: str = Field(
        "sentence-transformers/all-MiniLM-L6-v2",
        description="Hub id or local folder of a BERT or RoBERTa model, or a text file of word vectors (GloVe).",
    )
    revision: str = Field("main", description="Branch, tag or commit on the hub; ignored for a local folder.")
    family: Literal["bert", "roberta"] | None = Field(
        None, description="Family that a preset was made for; another one is refused. null: any."
    )
    word_dimension: Positive | None = Field(
        None, description="Width that a file of word vectors must have; null: whatever its first line has."
    )


class PromptSettings(Group):
    """The trainable prompt vectors (PromCSE section 3.1)."""

    kind: Literal["none", "key_value", "hidden_state", "input"] = Field(
        "key_value",
        description="`key_value`: free keys and values in every layer (released code); `hidden_state`: vectors that "
        "pass through each layer's frozen key and value projections (PromCSE equation 1); `input`: vectors before the "
        "tokens of the first layer only, which pass through all layers; `none`: no prompt.",
    )
    length: int = Field(12, ge=0, le=1000, description="Prompt vectors per layer (k); 0 only with kind `none`.")
    layers: Literal["separate", "shared"] = Field(
        "separate", description="A prompt of its own for every layer, or one that all layers share (PromCSE table 3)."
    )
    dropout: Share | None = Field(
        None, description="Dropout on the prompt, drawn for each row; null: the backbone's hidden dropout."
    )
    position_shift: bool = Field(True, description="Tokens take positions from k on, as the released checkpoints do.")
    init: Literal["random", "text", "checkpoint"] = Field(
        "random", description="Start of the prompt: normal noise, what the backbone makes of a text, or another prompt."
    )
    init_std: NonNegative = Field(0.02, description="Standard deviation of the normal initialisation.")
    init_text: str = Field(
        "This sentence can be summarised in one word that carries its whole meaning:",
        description="`init: text`: the text; it is repeated or cut to the prompt's length.",
    )
    init_checkpoint: str = Field(
        "data/raw/prompt",
        description="`init: checkpoint`: folder of a checkpoint with the same prompt on the same backbone, for "
        "instance of MLM training; the pipeline trains again when it changes.",
    )
    reparametrize: Literal["none", "mlp", "lstm"] = Field(
        "none", description="Train the prompt through a network that is dropped afterwards (P-tuning), or directly."
    )
    reparametrize_width: Positive = Field(512, le=65_536, description="Hidden width of that network.")
    cls: bool = Field(False, description="Train the word vector of `[CLS]` too (D2CSE's `[CLS]` prompt).")


class TemplateSettings(Group):
    """Words around the sentence, read out at the mask (PromptBERT, SCPCSE)."""

    text: str | None = Field(
        None, description='For instance `This sentence : "{sentence}" means {mask} .`; null: the bare sentence.'
    )
    second: str | None = Field(
        None, description="Template of the second copy of a sentence (PromptBERT's two views); null: the same."
    )
    trained: bool = Field(
        False, description="Train a vector for each piece of the template, from its word vector (SCPCSE)."
    )
    denoise: Literal["none", "train_only", "always"] = Field(
        "none", description="Subtract what the template gives without the sentence, at the sentence's length."
    )
    end_with_period: bool = Field(
        False,
        description="At inference append a period to a sentence that ends in neither period, question mark nor quote.",
    )

    @model_validator(mode="after")
    def _check(self) -> TemplateSettings:
        for name in ("text", "second"):
            template = getattr(self, name)
            for slot in ("{sentence}", "{mask}"):
                if template is not None and template.count(slot) != 1:
                    raise ValueError(f"{name}: needs {slot} exactly once, found {template!r}")
            if template is not None and template.index("{mask}") < template.index("{sentence}"):
                raise ValueError(f"{name}: {{mask}} must stand after {{sentence}}, found {template!r}")
        if self.text is None:
            for name, value in (("second", self.second is not None), ("trained", self.trained)):
                if value:
                    raise ValueError(f"{name}: there is no template; give template.text")
            if self.denoise != "none":
                raise ValueError("denoise: there is no template; give template.text")
        return self


class PoolerSettings(Group):
    """How token outputs become one vector."""

    kind: Literal["cls", "mean", "mean_top2", "mean_first_last", "mask", "cnn"] | None = Field(
        None,
        description="null: as the backbone was made for (`mean` for MiniLM, `cls` for BERT and RoBERTa); `mask` reads "
        "the template's mask; `cnn` is IS-BERT's trained convolutions.",
    )
    kind_in_loss: Literal["cls", "mean", "mean_top2", "mean_first_last"] | None = Field(
        None, description="What the loss reads where that differs from the embedding (ConSERT); null: the same."
    )
    first_layer: Literal["embeddings", "block1"] = Field(
        "embeddings", description="`mean_first_last`: which output counts as the first layer."
    )
    mlp: Literal["none", "train_only", "always"] = Field(
        "none", description="Projector after pooling: never, in the loss only, or in the embedding too."
    )
    projector: Literal["tanh", "batch_norm", "mlm_transform"] = Field(
        "tanh",
        description="The projector: `tanh` (Linear + tanh, SimCSE), `batch_norm` (DiffCSE, D2CSE; train_only), or "
        "`mlm_transform`, the pretrained layer under the backbone's MLM head (supervised PromptBERT).",
    )


class PostSettings(Group):
    """Post-processing fitted on the training sentences; stored with the encoder and exported with it."""

    kind: Literal["none", "whitening", "flow"] = Field(
        "none", description="`whitening` (BERT-whitening) or `flow` (BERT-flow)."
    )
    dimension: Positive | None = Field(None, description="`whitening`: leading dimensions to keep; null: all.")
    sentences: Positive = Field(100_000, description="Most distinct training sentences to fit on, evenly spaced.")
    max_length: int = Field(
        64, ge=3, le=100_000, description="Tokens per sentence in fitting, special tokens included."
    )
    learning_rate: float = Field(1e-3, gt=0.0, description="`flow`: learning rate of Adam.")
    batch_size: int = Field(32, ge=2, description="`flow`: sentences per step.")
    epochs: Positive = Field(1, description="`flow`: passes over the sentences.")
    seed: int = Field(42, ge=0, description="`flow`: seed of initialisation and order.")


class NtXentSettings(Group):
    """Contrastive cross-entropy (SimCSE equations 1 and 5)."""

    weight: NonNegative = Field(1.0, description="Weight of the term in the loss.")
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


class EnergyHingeSettings(Group):
    """Energy-based hinge on raw cosines (PromCSE equation 11); needs triplets."""

    weight: NonNegative = Field(10.0, description="Weight of the term in the loss; 0 leaves it out.")
    margin: float = Field(0.2, ge=0.0, le=2.0, description="Cosine by which a positive must beat every negative.")


class MaskedLmSettings(Group):
    """Masked language modelling beside the contrastive loss (DCPCSE); needs a backbone with an MLM head."""

    weight: NonNegative = Field(0.0, description="Weight of the term at the start; 0 leaves it out.")
    mask_share: Share = Field(0.15, description="Share of tokens to predict (80 % mask, 10 % random, 10 % unchanged).")
    decay_rate: float = Field(0.95, gt=0.0, le=1.0, description="The weight is multiplied by this ...")
    decay_steps: Positive = Field(100, description="... every so many steps (real-valued exponent).")
    train_head: bool = Field(
        False, description="Train the head, untied from the word vectors, as the released code does; else it is frozen."
    )


class ReplacedTokensSettings(Group):
    """Conditional replaced-token detection (DiffCSE, D2CSE)."""

    weight: NonNegative = Field(0.0, description="Weight of the term (lambda); 0 leaves it out.")
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


class ContrastiveTensionSettings(Group):
    """Contrastive Tension: two copies, dot products, 1 positive and 7 negatives (Carlsson et al. 2021)."""

    weight: NonNegative = Field(0.0, description="Weight of the term; 0 leaves it out.")
    group: int = Field(8, ge=2, description="Rows of one positive and its negatives; train.batch_size is a multiple.")


class SelfGuidedSettings(Group):
    """SG-OPT: layers of a frozen clone as targets (Kim et al. 2021)."""

    weight: NonNegative = Field(0.0, description="Weight of the term; 0 leaves it out.")
    temperature: Temperature = Field(0.01, description="Divides the cosines.")
    projection: Positive = Field(4096, le=65_536, description="Width of the projection.")
    regularizer: NonNegative = Field(0.1, description="Weight of the squared distance to the initial weights.")


class MutualInformationSettings(Group):
    """IS-BERT: mutual information between tokens and sentence; needs pooler.kind `cnn` (Zhang et al. 2020)."""

    weight: NonNegative = Field(0.0, description="Weight of the term; 0 leaves it out.")


class NliSoftmaxSettings(Group):
    """SBERT: classify entailment, neutral, contradiction; needs data.view `labelled` (Reimers and Gurevych 2019)."""

    weight: NonNegative = Field(0.0, description="Weight of the term; 0 leaves it out.")


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

    def terms(self) -> list[str]:
        """Return the names of the terms with a weight above 0, in order."""
        return [name for name in type(self).model_fields if getattr(self, name).weight > 0]

    @property
    def comparing(self) -> list[str]:
        """Names of the terms that compare sentences; dev pairs cannot judge what the others, over tokens, train."""
        return [name for name in self.terms() if name not in ("masked_lm", "replaced_tokens")]

    @model_validator(mode="after")
    def _check(self) -> ObjectiveSettings:
        if not self.terms():
            raise ValueError("nt_xent.weight: every term of the objective has weight 0; give one a weight above 0")
        return self


class AugmentSettings(Group):
    """What makes the two copies of a sentence differ, beside dropout."""

    repeat_words: Share = Field(
        0.0, description="Largest share of word pieces that are repeated in the second copy (ESimCSE); 0: none."
    )
    repeat_rule: Literal["paper", "released"] = Field(
        "paper",
        description="How many pieces are repeated: up to that share, 2 at least (paper), or fewer than that share and "
        "fewer than 10, special tokens counted in the length (released code).",
    )
    mask_span: int = Field(
        0,
        ge=0,
        le=100_000,
        description="Characters of the second copy that are replaced by a mask (Mirror-BERT); 0: none.",
    )
    shuffle_tokens: bool = Field(False, description="Shuffle the positions of the first copy's tokens (ConSERT).")
    shuffle_special: bool = Field(
        False, description="`shuffle_tokens`: special tokens change places too, as in ConSERT's released code."
    )
    cut_features: Share = Field(
        0.0, description="Share of embedding features that are set to 0 in the second copy (ConSERT); 0: none."
    )
    dropout: bool = Field(True, description="The backbone's dropout in training; false: off (ConSERT).")


class TrainSettings(Group):
    """The training loop."""

    parameters: Literal["prompts", "full", "none"] = Field(
        "prompts",
        description="What is trained: the prompts (backbone frozen), every weight, or nothing (read-outs, word vectors "
        "and post-processing without training).",
    )
    new_layers: Literal["normal", "torch"] = Field(
        "normal",
        description="Start of the BatchNorm projector and of the MLP behind a reparametrised prompt: normal noise of "
        "0.02 and no bias, as in every released code, or as torch starts a linear layer.",
    )
    optimizer: Literal["adamw", "rmsprop"] = Field("adamw", description="Optimiser; `rmsprop` for Contrastive Tension.")
    beta1: Share = Field(0.9, description="AdamW's decay of the mean.")
    beta2: Share = Field(0.999, description="AdamW's decay of the variance.")
    schedule: Literal["linear", "constant", "staircase"] = Field(
        "linear",
        description="Learning rate after warm-up: in a line to 0, constant, or less by a fifth of the peak every 500 "
        "steps, down to a fifth (Contrastive Tension).",
    )
    learning_rate: float = Field(1e-2, gt=0.0, description="Peak learning rate.")
    batch_size: int = Field(128, ge=2, description="Rows per step; each row's negatives are the other rows.")
    epochs: Positive = Field(1, description="Passes over the training rows.")
    max_length: int = Field(
        32, ge=3, le=100_000, description="Tokens per sentence in training, special tokens and template included."
    )
    warmup_share: Share = Field(0.0, description="Share of the steps in which the learning rate rises from 0.")
    weight_decay: NonNegative = Field(0.0, description="AdamW's decoupled weight decay.")
    clip_norm: float = Field(1.0, gt=0.0, description="Largest global norm of the gradient.")
    precision: Literal["auto", "bf16", "fp32"] = Field(
        "auto", description="Of the matrix products in training; `auto`: bf16 where the hardware has it."
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="`auto`: the GPU where there is one.")
    row_groups: Positive = Field(
        4, le=1000, description="Length-sorted slices in which a batch is encoded, each padded to its own longest row."
    )
    mini_batch_size: Positive | None = Field(
        None,
        description="Most sentences whose activations are in memory at once: each slice of a batch is encoded twice "
        "(gradient caching, same gradients, a third slower); null: the whole batch, encoded once.",
    )
    workers: Positive = Field(
        1,
        le=1024,
        description="Processes that share each batch, one per GPU (or CPU), on this machine or a Ray cluster.",
    )
    eval_every: Positive = Field(125, description="Steps between evaluations on the dev pairs.")
    selection: Literal["inference", "training"] = Field(
        "inference",
        description="How dev pairs are encoded to choose a checkpoint: as at inference, or as the loss reads them, "
        "dropout off: `pooler.kind_in_loss`, denoised, no added period (PromptBERT's and ConSERT's released trainers). "
        "The score that is reported of the kept one is at inference.",
    )
    early_stop: Positive | None = Field(
        None,
        description="Evaluations on the dev pairs without a new best score, the start's included, before stopping.",
    )
    save_seconds: NonNegative = Field(
        60.0, description="Seconds between saved states that a killed run resumes from; 0: after every step."
    )
    seed: int = Field(42, ge=0, description="Seed of initialisation, order and dropout.")


class EvaluationSettings(Group):
    """Scoring, on semantic textual similarity and whatever else is asked for."""

    measures: list[Literal["sts", "cxc", "transfer", "retrieval", "space"]] = Field(
        ["sts"],
        min_length=1,
        description="What to measure, as far as its data are there: `sts`, `cxc` (CxC-STS), `transfer` tasks, "
        "`retrieval`, `space` (alignment and uniformity).",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="`auto`: the GPU where there is one.")
    batch_size: Positive = Field(64, description="Sentences per forward pass.")
    compare_backbone: bool = Field(True, description="Score the bare backbone beside the checkpoint.")


class ExportSettings(Group):
    """The ONNX bundle."""

    provider: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where the parity check runs; `cuda` fails when the GPU does not attach."
    )
    tolerance: float = Field(1e-5, gt=0.0, description="Largest difference allowed between ONNX and torch.")
    normalize: bool = Field(True, description="Whether the bundle's embeddings have unit length by default.")
    sentences: Positive = Field(256, description="Sentences of the evaluation data used in the parity check.")


class PromotionSettings(Group):
    """Versions and stages of models, and what a new one has to hold up to."""

    name: str = Field(
        "sentence-encoder",
        pattern=r"^[a-z][a-z0-9-]*[a-z0-9]$",
        description="Name of the model in the registry; as under `artifacts` in dvc.yaml.",
    )
    stage: str = Field(
        "production", pattern=r"^[a-z][a-z0-9-]*[a-z0-9]$", description="Stage that a promoted model takes."
    )
    dev_tolerance: NonNegative = Field(
        0.5, description="Points of dev Spearman * 100 by which a promoted model may be worse than the one before."
    )


class TuneSettings(Group):
    """Search for better settings (`cse tune`), by the score on the dev pairs."""

    space: Literal["default", "promcse", "dcpcse", "d2cse"] = Field(
        "default", description="A ready search space; the last three are those of the papers."
    )
    over: list[str] = Field(
        [],
        description="A space of your own in its place: `KEY=[VALUE, ...]` or `KEY=LOW..HIGH`, with `log` behind it for "
        "a logarithmic scale.",
    )
    search: Literal["auto", "optuna", "grid", "two_step"] = Field(
        "auto", description="How to search; `auto`: as the space is meant, and a grid for an own one of lists alone."
    )
    trials: Positive = Field(12, le=100_000, description="`optuna`: settings to try; grids try all.")
    stop_early: bool = Field(True, description="`optuna`: stop trials that fall behind the others (ASHA).")
    evaluations: Positive = Field(
        4, le=1000, description="`stop_early`: evaluations of a trial, evenly spaced; train.eval_every follows from it."
    )
    concurrent: Positive | None = Field(None, description="Most trials at once; null: as many as find room.")
    cpus_per_trial: Positive = Field(1, le=1024, description="Processors of a trial; it uses as many threads.")
    gpus_per_trial: NonNegative | None = Field(
        None,
        description="GPUs of a trial, or the share of one that several trials use together (0.25: four trials); null: "
        "one where there is one.",
    )
    seed: int = Field(42, ge=0, description="Seed of the search.")


class Settings(Group):
    """Everything ``params.yaml`` holds."""

    data: DataSettings = DataSettings()
    backbone: BackboneSettings = BackboneSettings()
    prompt: PromptSettings = PromptSettings()
    template: TemplateSettings = TemplateSettings()
    pooler: PoolerSettings = PoolerSettings()
    post: PostSettings = PostSettings()
    augment: AugmentSettings = AugmentSettings()
    objective: ObjectiveSettings = ObjectiveSettings()
    train: TrainSettings = TrainSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    export: ExportSettings = ExportSettings()
    promotion: PromotionSettings = PromotionSettings()
    tune: TuneSettings = TuneSettings()

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> Settings:
        of_rows = [] if (info.context or {}).get(ANY_VIEW) else impossible_rows(self)
        for problem in [*impossible(self), *of_rows]:
            raise ValueError(problem)
        return self


ANY_VIEW = "any view"  # in the context of a validation: the objective need not suit data.view


def impossible(settings: Settings) -> list[str]:
    """Return combinations that cannot work on any rows, each as ``key: what and what to do``."""
    checks = (_prompt_problems, _read_out_problems, _term_problems)
    return [problem for check in checks for applies, problem in check(settings) if applies]


def impossible_rows(settings: Settings) -> list[str]:
    """Return what cannot be trained on rows of ``data.view``, as ``impossible`` does."""
    return [problem for applies, problem in _view_problems(settings) if applies]


def _terms(settings: Settings) -> list[str]:
    return [] if settings.train.parameters == "none" else settings.objective.terms()


def _prompt_problems(settings: Settings) -> list[tuple[bool, str]]:
    prompt, trained, pooler = settings.prompt, settings.train.parameters, settings.pooler
    extras = prompt.cls or settings.template.trained or pooler.kind == "cnn"
    return [
        (
            trained == "prompts" and prompt.kind == "none" and not extras,
            "prompt.kind: 'none' leaves nothing to train with train.parameters: prompts; choose 'key_value' or "
            "'hidden_state', or set train.parameters: full",
        ),
        (
            trained == "none" and (prompt.kind != "none" or extras or pooler.mlp != "none"),
            "train.parameters: 'none' would keep prompt and projector at their random start; set prompt.kind: none and "
            "pooler.mlp: none, and train neither prompt.cls, template.trained nor pooler.kind cnn",
        ),
        (
            prompt.kind != "none" and prompt.length == 0,
            "prompt.length: 0 vectors are no prompt; give 1 or more, or set prompt.kind: none",
        ),
        (
            prompt.init == "checkpoint" and not prompt.init_checkpoint,
            "prompt.init_checkpoint: name the folder of the checkpoint to start from",
        ),
        (
            prompt.reparametrize != "none" and prompt.init != "random",
            "prompt.init: a prompt that is trained through a network starts at random; set prompt.init: random or "
            "prompt.reparametrize: none",
        ),
        (
            prompt.kind == "input" and prompt.layers == "shared",
            "prompt.layers: an 'input' prompt stands before the first layer only; set it to separate",
        ),
    ]


def _read_out_problems(settings: Settings) -> list[tuple[bool, str]]:
    pooler, template, augment = settings.pooler, settings.template, settings.augment
    return [
        (
            (pooler.kind == "mask") != (template.text is not None),
            "pooler.kind: 'mask' and template.text go together; give both or neither",
        ),
        (
            pooler.kind_in_loss is not None and pooler.kind in ("mask", "cnn"),
            f"pooler.kind_in_loss: {pooler.kind!r} is read in the loss too; set it to null",
        ),
        (
            augment.shuffle_special and not augment.shuffle_tokens,
            "augment.shuffle_special: nothing is shuffled; set augment.shuffle_tokens: true",
        ),
        (
            pooler.projector == "batch_norm" and pooler.mlp == "always",
            "pooler.mlp: the 'batch_norm' projector is for the loss only; set train_only",
        ),
        (
            template.text is not None and settings.prompt.kind == "input",
            "prompt.kind: an 'input' prompt and a template do not go together; choose one",
        ),
    ]


def _view_problems(settings: Settings) -> list[tuple[bool, str]]:
    view, objective, terms = settings.data.view, settings.objective, _terms(settings)
    return [
        (
            settings.template.second is not None and view != "sentences",
            f"template.second: two templates are for data.view 'sentences', it is {view!r}; remove it",
        ),
        (
            "energy_hinge" in terms and view != "triplets",
            f"objective.energy_hinge.weight: the hinge needs hard negatives, data.view is {view!r}; "
            "set the weight to 0 (-s objective.energy_hinge.weight=0) or data.view: triplets",
        ),
        (
            "nt_xent" in terms and objective.nt_xent.hard_negative_weight != 0 and view != "triplets",
            f"objective.nt_xent.hard_negative_weight: there are no hard negatives in data.view {view!r}; set it to 0",
        ),
        (
            "nt_xent" in terms and objective.nt_xent.two_views and view == "triplets",
            "objective.nt_xent.two_views: has no place for hard negatives; use data.view pairs or sentences",
        ),
        (
            "nli_softmax" in terms and view != "labelled",
            f"objective.nli_softmax.weight: the classifier needs labels, data.view is {view!r}; set it to labelled",
        ),
        (
            view == "labelled" and bool(set(terms) - {"nli_softmax"}),
            "data.view: 'labelled' rows are no positives; set the weight of every term but nli_softmax to 0",
        ),
        (
            "contrastive_tension" in terms and view != "sentences",
            f"objective.contrastive_tension.weight: needs data.view sentences, it is {view!r}",
        ),
    ]


def _term_problems(settings: Settings) -> list[tuple[bool, str]]:
    objective, terms, train = settings.objective, _terms(settings), settings.train
    group, replaced = objective.contrastive_tension.group, objective.replaced_tokens
    detects = "replaced_tokens" in terms
    return [
        (
            objective.nt_xent.queue > 0 and (objective.nt_xent.two_views or "nt_xent" not in terms),
            "objective.nt_xent.queue: goes with one-way nt_xent only; set queue: 0",
        ),
        (
            "mutual_information" in terms and settings.pooler.kind != "cnn",
            "objective.mutual_information.weight: needs pooler.kind: cnn",
        ),
        (
            "contrastive_tension" in terms and train.batch_size % group != 0,
            f"train.batch_size: {train.batch_size} is no multiple of objective.contrastive_tension.group {group}",
        ),
        (
            replaced.corrupts_beforehand and replaced.generator_dropout and replaced.generator != "unigram",
            "objective.replaced_tokens.generator_dropout: a prepared corruption has none; set it to false",
        ),
        (
            replaced.corrupts_beforehand and settings.augment.repeat_words > 0,
            "augment.repeat_words: changes rows after they were corrupted; set it to 0 or "
            "objective.replaced_tokens.corruption: on_the_fly",
        ),
        (
            detects and train.parameters == "full" and replaced.discriminator != "copy",
            "objective.replaced_tokens.discriminator: with train.parameters full nothing is frozen; set it to copy",
        ),
        (
            detects and (settings.template.text is not None or settings.prompt.kind == "input"),
            "objective.replaced_tokens.weight: goes with neither a template nor an 'input' prompt; set it to 0",
        ),
    ]
