"""Groups ``evaluation``, ``export``, ``promotion``, ``tune`` and ``bank``: what becomes of a model."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator

from cse.choices import Precision, Provider
from cse.settings.group import NonNegative, Positive, SettingsGroup


class EvaluationSettings(SettingsGroup):
    """Evaluation on semantic textual similarity and other requested measures."""

    measures: list[Literal["sts", "cxc", "transfer", "retrieval", "space", "tasks"]] = Field(
        ["sts", "tasks"], min_length=1
    )
    """What to measure, if the data for it exist: `sts`, `cxc` (CxC-STS), `transfer` (SentEval tasks), `retrieval`,
    `space` (alignment and uniformity), `tasks` (your own, `data.task_path`)."""
    device: Provider = "auto"
    """`auto`: the GPU if there is one, else the CPU; `openvino`: that for bundles, else the CPU."""


class ExportSettings(SettingsGroup):
    """The ONNX bundle."""

    tolerance: float = Field(1e-5, gt=0.0)
    """`fp32`: maximum allowed difference between ONNX and torch embeddings."""
    precision: Precision = "fp32"
    """Precision of the bundle's weights and matrix products: `fp16` for GPUs, `int8` for CPUs."""
    score_loss: float = Field(0.3, ge=0.0)
    """`fp16` and `int8`: points of Spearman * 100, on average over the evaluation tasks, that the bundle may lose to
    torch; without scored pairs, points of your own task's main measure, or two of its items."""


class PromotionSettings(SettingsGroup):
    """The bar that a new version of the model must clear."""

    dev_tolerance: NonNegative = 0.5
    """Points of the dev score (Spearman * 100, or the dev task's measure) by which a new model may fall below the
    promoted one."""


class TuneSettings(SettingsGroup):
    """Hyperparameter search (`cse tune`) by dev score."""

    space: str = "default"
    """Search space: one that ships (`cse tune --help` lists them), or a YAML file of your own, see docs/tune.md."""
    over: list[str] = Field([])
    """Your own space, in place of `space`: entries `KEY=[VALUE, ...]` or `KEY=LOW..HIGH`, followed by `log` for a
    logarithmic scale."""
    trials: Positive = Field(12, le=100_000)
    """`optuna`: number of trials; a grid always tries every combination."""
    concurrent: Positive | None = None
    """Maximum concurrent trials; null: as many as fit."""
    cpus_per_trial: Positive = Field(1, le=1024)
    """CPUs per trial; also its number of threads."""
    gpus_per_trial: NonNegative | None = None
    """GPUs per trial; a fraction lets several trials share one GPU (0.25: four trials). null: one GPU if there is
    one."""


_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}[a-z0-9]")  # also the end of a name in the registry, and a part of a key
OWN_GROUPS = ("data", "mine", "prompt", "pooler", "augment", "objective", "train")  # what a domain may set for itself


class DomainSettings(SettingsGroup):
    """One domain of the bank: its data and what it sets differently."""

    data: str
    """Folder with the domain's own `train`, `dev` and `evaluation` folders (or files), as in `data/raw`."""
    set: dict[str, Any] = Field({})
    """Settings of this domain alone, by dotted key."""

    @field_validator("set")
    @classmethod
    def _check_groups(cls, value: dict[str, Any]) -> dict[str, Any]:
        for key in value:
            if key.split(".")[0] not in OWN_GROUPS or "." not in key:
                raise ValueError(f"{key}: a domain sets keys of {', '.join(OWN_GROUPS)}; the bank shares the rest")
        return value


class BankSettings(SettingsGroup):
    """Domains that share one backbone in a bank; see docs/bank.md."""

    adapters: list[str] | None = None
    """Layers whose LoRA the domains of a new bank may have, by the ends of their names: `[query, value]`, or `[all]`.
    They may have their own biases too; with `[]`, these alone. `null`: prompts alone. Every text then costs more, see
    docs/bank.md."""
    domains: dict[str, DomainSettings] = Field({})
    """Domains by name: `tickets: {data: data/raw/tickets, set: {data.view: pairs, train.epochs: 3}}`."""

    @field_validator("domains")
    @classmethod
    def _check_names(cls, value: dict[str, DomainSettings]) -> dict[str, DomainSettings]:
        for name in value:
            if not _NAME.fullmatch(name) or name == "auto":
                raise ValueError(f"{name[:80]}: use 2 to 64 lower-case letters, digits and dashes, not `auto`")
        return value
