"""Put imported parts together as an encoder of this project."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from cse.choices import ReadOut
from cse.errors import in_terms_of
from cse.model.backbone import Backbone, load_backbone
from cse.model.backbone_files import find_backbone
from cse.model.checkpoint import save_checkpoint
from cse.model.declared import Declared
from cse.model.prompts import Prompt
from cse.model.sentence_encoder import SentenceEncoder
from cse.model.template import Template
from cse.outputs import Kind, publish_folder


@dataclass
class Imported:
    """A model that was read from another code's files."""

    encoder: SentenceEncoder
    facts: dict[str, Any]
    lines: list[str] = field(default_factory=list)


def open_backbone(name: str, revision: str) -> Backbone:
    """Load the backbone that ``--backbone`` names."""
    with in_terms_of("--backbone:", "backbone.name:"):
        return load_backbone(find_backbone(name, revision))


def save(imported: Imported, out: Path) -> None:
    """Write the checkpoint."""
    with publish_folder(out, Kind.CHECKPOINT) as folder:
        save_checkpoint(imported.encoder, folder, imported.facts)


def build(
    backbone: Backbone,
    read_out: ReadOut,
    *,
    table: torch.Tensor | None = None,
    templates: Sequence[Template] = (),
    frozen: bool,
    lora_rank: int = 0,
    use: Declared | None = None,
) -> SentenceEncoder:
    """Return an encoder of the released form.

    Args:
        table: keys and values of a prefix ``(P, 2 * layers * H * K)``; None: there is no prompt.
        lora_rank: rank of low-rank updates, if these alone were trained; 0: they were not.
        use: length and task texts; None: the backbone's.
    """
    prompt = None
    if table is not None:
        prompt = Prompt("key_value", backbone, length=table.shape[0])
        copy_into({"table": prompt.table}, {"table": table})
    return SentenceEncoder(
        backbone,
        prompt,
        read_out,
        templates=templates,
        trained="lora" if lora_rank else "prompts" if frozen else "full",
        lora_rank=lora_rank,
        use=use,
    )


def copy_into(targets: Mapping[str, torch.Tensor | None], values: Mapping[str, torch.Tensor]) -> None:
    """Copy values over weights of the same names and shapes, in the weights' precision."""
    with torch.no_grad():
        for name, value in values.items():
            target = targets[name]
            assert target is not None and target.shape == value.shape  # noqa: S101 - checked by the reader
            target.copy_(value)
