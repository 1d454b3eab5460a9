"""The command that writes models for services and other tools, see ``cse.interchange``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cse.cli.options import check_given, settings_from, settings_options
from cse.errors import CseError
from cse.outputs import Kind, check_folder
from cse.stages.common import BUNDLE, CHECKPOINT, PREPARED

if TYPE_CHECKING:
    from cse.model.sentence_encoder import SentenceEncoder


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
    from cse.model.declared import is_checkpoint

    settings = settings_from(params, overrides, optional=form != "onnx")
    needs = form == "onnx" and (data.is_dir() or data != PREPARED or is_checkpoint(Path(model)))
    check_given(model, data if needs else None)  # a bare backbone needs no data
    if form == "onnx":
        from cse.stages.export import export_stage

        named = {} if Path(model) == CHECKPOINT else {"metrics": ()}
        export_stage(settings, model=model, prepared=data if needs else None, bundle=out or BUNDLE, **named)
        return
    if out is None:
        raise CseError(f"--format {form}: name a folder to write with --out")
    write = {"sentence-transformers": _to_sentence_transformers, "peft": _to_peft}[form]
    write(settings.export.tolerance, model, data, out)


def _to_sentence_transformers(tolerance: float, model: str, prepared: Path, out: Path) -> None:
    """Write a folder for sentence-transformers and publish it, if the library computes the same vectors from it."""
    from cse.interchange.sentence_transformers import export_sentence_transformers

    check_folder(out, Kind.SENTENCE_TRANSFORMERS)
    encoder, sentences = _opened(model, prepared)
    found = export_sentence_transformers(encoder, out, sentences, normalize=True, tolerance=tolerance)
    ordinary = encoder.prompt is None and encoder.cls is None
    loads = f"SentenceTransformer({str(out)!r}{'' if ordinary else ', trust_remote_code=True'})"
    click.echo(f"{out}: {_compared(found['largest_difference'], found['provider'], sentences)}; load it with {loads}")


def _to_peft(tolerance: float, model: str, prepared: Path, out: Path) -> None:
    """Write a prompt as an adapter for PEFT and publish it, if PEFT computes the same vectors with it."""
    from cse.interchange.peft import export_adapter

    check_folder(out, Kind.PEFT)
    encoder, sentences = _opened(model, prepared)
    found = export_adapter(encoder, out, sentences, tolerance=tolerance)
    if found is None:
        click.echo(f"{out}: not compared, because peft is not installed (pip install 'cse[interchange]')")
    else:
        click.echo(f"{out}: {_compared(found['largest_difference'], found['provider'], sentences)}")


def _opened(model: str, prepared: Path) -> tuple[SentenceEncoder, Sequence[str]]:
    """Return the encoder with sentences of the prepared data, or a few of our own where nothing is prepared."""
    from cse.data.store import PreparedData
    from cse.export.bank import SENTENCES
    from cse.stages.export import open_with_torch, sentences_for_parity

    encoder = open_with_torch(model)
    return encoder, sentences_for_parity(PreparedData(prepared)) if prepared.is_dir() else SENTENCES


def _compared(difference: float, tool: str, sentences: Sequence[str]) -> str:
    return f"largest difference of {tool} from this encoder {difference:.1e} on {len(sentences)} sentences"
