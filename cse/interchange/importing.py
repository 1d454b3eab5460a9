"""Make a checkpoint of this project from another code's files."""

from __future__ import annotations

from pathlib import Path

from cse.errors import CseError
from cse.interchange.assemble import Imported, open_backbone, save
from cse.interchange.from_peft import import_peft
from cse.interchange.from_released import import_released
from cse.interchange.from_sentence_transformers import import_sentence_transformers
from cse.interchange.layouts import LAYOUTS
from cse.outputs import Kind, check_folder

SENTENCE_TRANSFORMERS, PEFT = "sentence-transformers", "peft"
KINDS = (*LAYOUTS, SENTENCE_TRANSFORMERS, PEFT)


def import_model(
    source: Path,
    kind: str,
    backbone: str,
    out: Path,
    *,
    revision: str = "main",
    pooler: str | None = None,
    template: str | None = None,
) -> Imported:
    """Read a model of another code and write it as a checkpoint.

    Args:
        source: its folder or weight file.
        kind: one of ``KINDS``.
        backbone: folder or hub id of the language model that it was trained on.
        pooler: how the released scripts read an embedding; None: the code's only one.
        template: words around the sentence; None: the paper's.
    """
    check_folder(out, Kind.CHECKPOINT)
    if kind not in LAYOUTS and template is not None:
        raise CseError(f"--template: {kind} models have none; leave it out")
    if kind == SENTENCE_TRANSFORMERS and pooler is not None:
        raise CseError(f"--pooler {pooler}: a folder of {kind} says how it pools; leave it out")
    language_model = open_backbone(backbone, revision)
    if kind == SENTENCE_TRANSFORMERS:
        imported = import_sentence_transformers(source, language_model)
    elif kind == PEFT:
        imported = import_peft(source, language_model, pooler=pooler)
    else:
        imported = import_released(source, kind, language_model, pooler=pooler, template=template)
    save(imported, out)
    return imported
