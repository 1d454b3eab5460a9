"""``cse write-queries``: a language model writes queries for documents."""

from __future__ import annotations

from pathlib import Path

import click

_EXAMPLES = """\b
Examples:
  cse write-queries corpus.jsonl --model SmolLM2-135M-Instruct.Q4_1.gguf --out queries.jsonl
  cse write-queries manual/ --model Qwen/Qwen3-4B --out queries.jsonl --found-in 0
  cse write-queries corpus.jsonl --model doc2query/msmarco-t5-base-v1 --instruction plain.txt --out queries.jsonl

\b
Training reads them beside titles and sentences, in params.yaml:
  data: {view: documents, pairs: [stand_ins], train_path: corpus.jsonl,
         more: [{name: written, path: queries.jsonl, view: pairs, pairs: [stand_ins]}]}

\b
An instruction is a text with {document} in it. Examples may go before it, each with its answer, a line --- between
all turns. Models with a chat template get them as turns. If killed, run the same command again to go on.
docs/queries.md says what written queries won.
"""


@click.command("write-queries", epilog=_EXAMPLES)
@click.argument("documents", type=click.Path(path_type=Path))
@click.option("--model", required=True, help="Causal or sequence-to-sequence: folder, hub id or .gguf file.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="File to write: JSONL, query and document.")
@click.option("--instruction", type=click.Path(path_type=Path), help="File; default: three examples, in English.")
@click.option("--queries", type=click.IntRange(1), default=2, show_default=True, help="Queries of a document.")
@click.option("--most", type=click.IntRange(1), default=2000, show_default=True, help="Documents, drawn at random.")
@click.option(
    "--document-tokens",
    type=click.IntRange(1),
    default=128,
    show_default=True,
    help="Read of a document, from its start.",
)
@click.option("--query-tokens", type=click.IntRange(1), default=24, show_default=True, help="Most tokens of a query.")
@click.option(
    "--temperature", type=click.FloatRange(0), default=0.5, show_default=True, help="Of the draws; 0: likeliest tokens."
)
@click.option("--top-k", type=click.IntRange(1), default=20, show_default=True, help="Likeliest tokens drawn from.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of all draws.")
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True, help="Documents at a time.")
@click.option(
    "--found-in",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="Keep a query if a search by vectors and words finds its document among so many; 0: keep all.",
)
@click.option("--encoder", help="Whose vectors that search uses; default: the default backbone.")
@click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True, help="Where it runs."
)
def write_queries_command(
    documents: Path,
    model: str,
    out: Path,
    instruction: Path | None,
    queries: int,
    most: int,
    document_tokens: int,
    query_tokens: int,
    temperature: float,
    top_k: int,
    seed: int,
    batch_size: int,
    found_in: int,
    encoder: str | None,
    device: str,
) -> None:
    """Let a language model write queries for DOCUMENTS, to train the query side on.

    DOCUMENTS is what data.train_path names for view documents: a table with title and text, Markdown, HTML or text
    files, or a folder of BEIR. What is empty, repeats itself, the instruction or the document is left out and counted.
    """
    from cse.settings.groups.backbone import BackboneSettings
    from cse.stages.write_queries import Choices, RoundTrip, write_queries

    choices = Choices(
        model, instruction, queries, most, document_tokens, query_tokens, temperature, top_k, batch_size, seed
    )
    trip = RoundTrip(found_in, encoder or BackboneSettings().name) if found_in else None
    count = write_queries(documents, out, choices, trip, device=device)
    click.echo(f"{out}: {count:,} queries")
