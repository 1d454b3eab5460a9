"""The one tree of settings: what ``params.yaml`` may say, with types, ranges and units.

Every class is frozen and refuses unknown keys. A stage receives the groups that it declares in ``dvc.yaml`` and
nothing else; below a builder no code sees a settings object.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]
NonNegative = Annotated[float, Field(ge=0.0)]


class Group(BaseModel):
    """A group of settings: frozen, strict about types, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class DataSettings(Group):
    """Where text comes from and what ``prepare`` makes of it."""

    source: Literal["sample", "files", "hub"] = Field(
        "sample", description="`sample` is generated, `files` reads the paths below, `hub` downloads."
    )
    view: Literal["sentences", "pairs", "triplets"] = Field(
        "triplets", description="What a training row is: a sentence (its copy is the positive), a pair, a triplet."
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
    max_rows: Positive | None = Field(None, description="Rows to keep after cleaning, from the top; null: all.")
    max_words: Positive = Field(1000, description="Sentences with more words are dropped and counted.")
    drop_duplicates: bool = Field(True, description="Drop rows that occurred before (same text after trimming).")
    drop_evaluation_overlap: bool = Field(
        True, description="Drop training rows with a sentence of the evaluation data (case and punctuation ignored)."
    )
    sample_rows: Positive = Field(3000, description="`sample`: rows to generate.")
    seed: int = Field(42, ge=0, description="`sample`: seed of the generator.")

    @model_validator(mode="after")
    def _check(self) -> DataSettings:
        if len(self.score_range) != 2 or not self.score_range[0] < self.score_range[1]:
            raise ValueError("score_range: give two numbers, the lower first")
        if self.columns is not None and len(self.columns) != VIEW_WIDTH[self.view]:
            raise ValueError(
                f"columns: view {self.view!r} needs {VIEW_WIDTH[self.view]} column names, {len(self.columns)} given"
            )
        if self.encoding != "utf-8":
            try:
                "".encode(self.encoding)
            except LookupError:
                raise ValueError(f"encoding: {self.encoding!r} is not an encoding that Python knows") from None
        return self


VIEW_WIDTH = {"sentences": 1, "pairs": 2, "triplets": 3}


class BackboneSettings(Group):
    """The pretrained language model under the prompts."""

    name: str = Field(
        "sentence-transformers/all-MiniLM-L6-v2", description="Hub id or local folder of a BERT or RoBERTa model."
    )
    revision: str = Field("main", description="Branch, tag or commit on the hub; ignored for a local folder.")


class PromptSettings(Group):
    """The trainable prompt vectors (PromCSE section 3.1)."""

    kind: Literal["none", "key_value", "hidden_state"] = Field(
        "key_value",
        description="`key_value`: free keys and values in every layer (released code); `hidden_state`: vectors that "
        "pass through each layer's frozen key and value projections (PromCSE equation 1); `none`: no prompt.",
    )
    length: int = Field(12, ge=0, description="Prompt vectors per layer (k); 0 only with kind `none`.")
    dropout: Share | None = Field(
        None, description="Dropout on the prompt, drawn for each row; null: the backbone's hidden dropout."
    )
    position_shift: bool = Field(True, description="Tokens take positions from k on, as the released checkpoints do.")
    init_std: NonNegative = Field(0.02, description="Standard deviation of the normal initialisation.")


class PoolerSettings(Group):
    """How token outputs become one vector."""

    kind: Literal["cls", "mean", "mean_top2", "mean_first_last"] | None = Field(
        None, description="null: as the backbone was made for (`mean` for MiniLM, `cls` for BERT and RoBERTa)."
    )
    first_layer: Literal["embeddings", "block1"] = Field(
        "embeddings", description="`mean_first_last`: which output counts as the first layer."
    )
    mlp: Literal["none", "train_only", "always"] = Field(
        "none", description="Linear + tanh after pooling: never, in the loss only, or in the embedding too."
    )


class NtXentSettings(Group):
    """Contrastive cross-entropy (SimCSE equations 1 and 5)."""

    weight: NonNegative = Field(1.0, description="Weight of the term in the loss.")
    temperature: float = Field(0.05, gt=0.0, description="Divides the cosines.")
    hard_negative_weight: float = Field(
        0.0, description="Added to the logit of a row's own hard negative (the log of its weight)."
    )


class EnergyHingeSettings(Group):
    """Energy-based hinge on raw cosines (PromCSE equation 7); needs triplets."""

    weight: NonNegative = Field(10.0, description="Weight of the term in the loss; 0 leaves it out.")
    margin: float = Field(0.2, ge=0.0, le=2.0, description="Cosine by which a positive must beat every negative.")


class ObjectiveSettings(Group):
    """The terms of the loss."""

    nt_xent: NtXentSettings = NtXentSettings()
    energy_hinge: EnergyHingeSettings = EnergyHingeSettings()

    @model_validator(mode="after")
    def _check(self) -> ObjectiveSettings:
        if self.nt_xent.weight == 0 and self.energy_hinge.weight == 0:
            raise ValueError("nt_xent.weight: every term of the objective has weight 0; give one a weight above 0")
        return self


class TrainSettings(Group):
    """The training loop."""

    parameters: Literal["prompts", "full"] = Field(
        "prompts", description="What is trained: the prompts (backbone frozen) or every weight."
    )
    learning_rate: float = Field(1e-2, gt=0.0, description="Peak learning rate; it falls linearly to 0.")
    batch_size: int = Field(128, ge=2, description="Rows per step; each row's negatives are the other rows.")
    epochs: Positive = Field(1, description="Passes over the training rows.")
    max_length: int = Field(32, ge=3, description="Tokens per sentence in training, special tokens included.")
    warmup_share: Share = Field(0.0, description="Share of the steps in which the learning rate rises from 0.")
    weight_decay: NonNegative = Field(0.0, description="AdamW's decoupled weight decay.")
    clip_norm: float = Field(1.0, gt=0.0, description="Largest global norm of the gradient.")
    precision: Literal["auto", "bf16", "fp32"] = Field(
        "auto", description="Of the matrix products in training; `auto`: bf16 where the hardware has it."
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="`auto`: the GPU where there is one.")
    row_groups: Positive = Field(
        4, description="Length-sorted slices in which a batch is encoded, each padded to its own longest row."
    )
    eval_every: Positive = Field(125, description="Steps between evaluations on the dev pairs.")
    early_stop: Positive | None = Field(None, description="Evaluations without improvement before stopping.")
    save_every: Positive = Field(25, description="Steps between saved states that a killed run resumes from.")
    seed: int = Field(42, ge=0, description="Seed of initialisation, order and dropout.")


class EvaluationSettings(Group):
    """Scoring on semantic textual similarity."""

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


class Settings(Group):
    """Everything ``params.yaml`` holds."""

    data: DataSettings = DataSettings()
    backbone: BackboneSettings = BackboneSettings()
    prompt: PromptSettings = PromptSettings()
    pooler: PoolerSettings = PoolerSettings()
    objective: ObjectiveSettings = ObjectiveSettings()
    train: TrainSettings = TrainSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    export: ExportSettings = ExportSettings()

    @model_validator(mode="after")
    def _check(self) -> Settings:
        for problem in impossible(self):
            raise ValueError(problem)
        return self


def impossible(settings: Settings) -> list[str]:
    """Return combinations that cannot work, each as ``key: what and what to do``."""
    problems = []
    prompt, objective, view = settings.prompt, settings.objective, settings.data.view
    if settings.train.parameters == "prompts" and prompt.kind == "none":
        problems.append(
            "prompt.kind: 'none' leaves nothing to train with train.parameters: prompts; choose 'key_value' or "
            "'hidden_state', or set train.parameters: full"
        )
    if prompt.kind != "none" and prompt.length == 0:
        problems.append("prompt.length: 0 vectors are no prompt; give 1 or more, or set prompt.kind: none")
    if objective.energy_hinge.weight > 0 and view != "triplets":
        problems.append(
            f"objective.energy_hinge.weight: the hinge needs hard negatives, data.view is {view!r}; "
            "set the weight to 0 or data.view: triplets"
        )
    if objective.nt_xent.hard_negative_weight != 0 and view != "triplets":
        problems.append(
            f"objective.nt_xent.hard_negative_weight: there are no hard negatives in data.view {view!r}; set it to 0"
        )
    return problems
