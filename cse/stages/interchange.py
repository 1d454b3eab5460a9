"""Write a model in the form of another tool, see ``cse.interchange``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from cse.data.store import PreparedData
from cse.export.bank import SENTENCES
from cse.outputs import Kind, check_folder
from cse.settings import Settings
from cse.stages.export import open_with_torch, sentences_for_parity


def to_sentence_transformers(settings: Settings, *, model: str, prepared: Path, out: Path) -> None:
    """Write a folder for sentence-transformers and publish it, if the library computes the same vectors from it."""
    from cse.interchange.sentence_transformers import export_sentence_transformers

    check_folder(out, Kind.SENTENCE_TRANSFORMERS)
    encoder, sentences, options = open_with_torch(model), _sentences(settings, prepared), settings.export
    found = export_sentence_transformers(encoder, out, sentences, normalize=True, tolerance=options.tolerance)
    ordinary = encoder.prompt is None and encoder.cls is None
    loads = f"SentenceTransformer({str(out)!r}{'' if ordinary else ', trust_remote_code=True'})"
    click.echo(f"{out}: {_compared(found['largest_difference'], found['provider'], sentences)}; load it with {loads}")


def to_peft(settings: Settings, *, model: str, prepared: Path, out: Path) -> None:
    """Write a prompt as an adapter for PEFT and publish it, if PEFT computes the same vectors with it."""
    from cse.interchange.peft import export_adapter

    check_folder(out, Kind.PEFT)
    encoder, sentences = open_with_torch(model), _sentences(settings, prepared)
    found = export_adapter(encoder, out, sentences, tolerance=settings.export.tolerance)
    if found is None:
        click.echo(f"{out}: not compared, because peft is not installed (pip install 'cse[interchange]')")
    else:
        click.echo(f"{out}: {_compared(found['largest_difference'], found['provider'], sentences)}")


def _sentences(settings: Settings, prepared: Path) -> Sequence[str]:
    """Return sentences of the prepared data, or a few of our own where nothing is prepared."""
    if not prepared.is_dir():
        return SENTENCES
    return sentences_for_parity(PreparedData(prepared))


def _compared(difference: float, tool: str, sentences: Sequence[str]) -> str:
    return f"largest difference of {tool} from this encoder {difference:.1e} on {len(sentences)} sentences"
