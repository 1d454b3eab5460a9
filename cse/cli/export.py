"""The command that writes models for services and other tools."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from cse.cli.options import check_given, settings_from, settings_options
from cse.errors import CseError
from cse.stages.common import BUNDLE, CHECKPOINT, PREPARED


@click.command(
    epilog="""\b
Formats:
  onnx                   a bundle for services, without torch; every model has this form
  sentence-transformers  a folder for SentenceTransformer(folder, trust_remote_code=True);
                         a model without prompts needs no trust_remote_code
  peft                   the prompt as an adapter for PEFT's prefix tuning

\b
Examples:
  cse export data/checkpoint --out /srv/models/tickets
  cse export --format sentence-transformers --out data/sentence-transformers
  cse export data/checkpoint --format peft --out data/adapter
"""
)
@click.argument("model", default=str(CHECKPOINT))
@settings_options
@click.option(
    "--format",
    "form",
    type=click.Choice(["onnx", "sentence-transformers", "peft"]),
    default="onnx",
    show_default=True,
    help="Form of the model, see below.",
)
@click.option("--data", type=click.Path(path_type=Path), default=PREPARED, show_default=True, help="Prepared data.")
@click.option("--out", type=click.Path(path_type=Path), show_default=f"{BUNDLE}, for onnx alone", help="Output folder.")
def export(model: str, params: Path, overrides: Sequence[str], form: str, data: Path, out: Path | None) -> None:
    """Write MODEL in the form that a service or another tool loads.

    Its embeddings, as that tool computes them, are compared with torch's first. The other formats need the extra
    `interchange`.
    """
    settings = settings_from(params, overrides, optional=form != "onnx")
    check_given(model, data if form == "onnx" else None)  # the other forms of a bare backbone need no data
    if form == "onnx":
        from cse.stages.export import export_stage

        named = {} if Path(model) == CHECKPOINT else {"metrics": ()}
        export_stage(settings, model=model, prepared=data, bundle=out or BUNDLE, **named)
        return
    if out is None:
        raise CseError(f"--format {form}: name a folder to write with --out")
    from cse.stages.interchange import to_peft, to_sentence_transformers

    write = {"sentence-transformers": to_sentence_transformers, "peft": to_peft}[form]
    write(settings, model=model, prepared=data, out=out)
