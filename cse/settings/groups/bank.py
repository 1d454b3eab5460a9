"""Group ``bank``."""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field, field_validator

from cse.settings.groups.group import Positive, SettingsGroup

_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}[a-z0-9]")  # also the end of a name in the registry, and a part of a key
OWN_GROUPS = ("data", "mine", "prompt", "pooler", "augment", "objective", "train")  # what a domain may set for itself


class DomainSettings(SettingsGroup):
    """One domain of the bank: its data and what it sets differently."""

    data: str = Field(
        description="Folder with the domain's own `train`, `dev` and `evaluation` folders (or files), as in `data/raw`."
    )
    set: dict[str, Any] = Field({}, description="Settings of this domain alone, by dotted key.")

    @field_validator("set")
    @classmethod
    def _check_groups(cls, value: dict[str, Any]) -> dict[str, Any]:
        for key in value:
            if key.split(".")[0] not in OWN_GROUPS or "." not in key:
                raise ValueError(f"{key}: a domain sets keys of {', '.join(OWN_GROUPS)}; the bank shares the rest")
        return value


class BankSettings(SettingsGroup):
    """Domains that share one backbone in a bank; see docs/bank.md."""

    folder: str = Field("data/bank", description="The bank that `train-bank` adds domains to.")
    at_once: Positive = Field(2, description="Domains that `train-bank` trains side by side, one per Ray worker.")
    adapters: list[str] | None = Field(
        None,
        description="Layers whose LoRA the domains of a new bank may have, by the ends of their names: "
        "`[query, value]`, or `[all]`. They may have their own biases too; with `[]`, these alone. `null`: prompts "
        "alone. Every text then costs more, see docs/bank.md.",
    )
    domains: dict[str, DomainSettings] = Field(
        {},
        description="Domains by name: `tickets: {data: data/raw/tickets, set: {data.view: pairs, train.epochs: 3}}`.",
    )

    @field_validator("domains")
    @classmethod
    def _check_names(cls, value: dict[str, DomainSettings]) -> dict[str, DomainSettings]:
        for name in value:
            if not _NAME.fullmatch(name) or name == "auto":
                raise ValueError(f"{name[:80]}: use 2 to 64 lower-case letters, digits and dashes, not `auto`")
        return value
