"""``cse embed``, ``cse index`` and ``cse search``: embed a whole corpus and search it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from cse.errors import escaped, one_line
from cse.stages.common import BUNDLE

if TYPE_CHECKING:
    from cse.scale.corpus.search import Hit

_provider_option = click.option(
    "--provider", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True, help="Where it runs."
)
_EMBED_EXAMPLES = """\b
Examples:
  cse embed sentences.txt --out data/vectors
  cse embed 'tickets/*.jsonl' --out data/vectors --text-column body --id-column ticket --keep-text
  cse embed tickets.csv --out data/vectors --model data/bank --domain-column queue
  cse embed manual.jsonl --out data/vectors --role passage            (E5, Qwen3-Embedding: models with task texts)
  cse embed s3://bucket/corpus --out s3://bucket/vectors --workers 16      (pip install s3fs)
  cse embed sentences.txt --out data/vectors --index hnsw && cse search data/vectors "A cat sleeps."

\b
If killed or stopped, run the same command again to resume. docs/corpus.md describes the output.
"""


@click.command(epilog=_EMBED_EXAMPLES)
@click.argument("corpus")
@click.option(
    "--out", required=True, metavar="FOLDER", help="Output folder: a path, or a URL such as s3://bucket/vectors."
)
@click.option("--model", default=str(BUNDLE), show_default=True, help="Bundle, or a bank's domain (BANK:NAME).")
@click.option("--text-column", default="text", show_default=True, help="Text column of csv, tsv, jsonl and parquet.")
@click.option("--id-column", help="Column with row ids, integers or text; default: number the rows from 0.")
@click.option("--domain-column", help="Column that names each row's domain; --model is a bank.")
@click.option("--role", help="Put the model's task text of this role before each row, for instance passage.")
@click.option("--keep-text", is_flag=True, help="Store the text with each vector, so that search can print it.")
@click.option("--shard-rows", type=click.IntRange(min=1), default=8192, show_default=True, help="Most rows per file.")
@click.option(
    "--workers", type=click.IntRange(min=0), help="Processes; default: one per core or GPU. 0: one process, no Ray."
)
@click.option("--batch-size", type=click.IntRange(min=1), default=64, show_default=True, help="Rows per forward pass.")
@_provider_option
@click.option("--normalize/--raw", default=True, show_default=True, help="Scale vectors to unit length, or not.")
@click.option("--index", type=click.Choice(["none", "exact", "hnsw"]), default="none", help="Also build an index.")
@click.option("--again", is_flag=True, help="Start over: delete what an earlier run wrote to the folder.")
def embed(
    corpus: str,
    out: str,
    model: str,
    text_column: str,
    id_column: str | None,
    domain_column: str | None,
    role: str | None,
    keep_text: bool,
    shard_rows: int,
    workers: int | None,
    batch_size: int,
    provider: str,
    normalize: bool,
    index: Literal["none", "exact", "hnsw"],
    again: bool,
) -> None:
    """Embed every row of a corpus.

    CORPUS is a file, folder or quoted glob, as a path or URL, of txt, csv, tsv, jsonl or parquet.

    Writes parquet files of at most --shard-rows rows with columns id and embedding, using all cores or GPUs.
    """
    from cse.scale.corpus.columns import Columns
    from cse.scale.corpus.embed import embed_corpus
    from cse.scale.corpus.plan import Choices

    columns = Columns(text_column, id_column, domain_column)
    choices = Choices(columns, keep_text, shard_rows, batch_size, normalize, provider, role)
    done = embed_corpus(corpus, out, model, choices, workers=workers, again=again)
    if done.truncated:
        shortest, longest = done.limits
        limit = f"{shortest} tokens, the model's limit"
        if shortest < longest:
            limit = f"{shortest} to {longest} tokens, the limits of their domains"
        click.echo(f"{done.truncated:,} rows were truncated to {limit}", err=True)
    if index != "none":
        _build(out, index)
    before = f", {done.found:,} of them from earlier runs" if done.found else ""
    shards = "1 shard" if done.shards == 1 else f"{done.shards:,} shards"
    click.echo(f"{out}: {done.rows:,} vectors of {done.dimension} dimensions in {shards}{before}", err=True)


@click.command(
    "index", epilog="\b\nExamples:\n  cse index data/vectors                 exact: compares every vector\n"
    "  cse index data/vectors --kind hnsw     approximate: a graph, for millions of rows"
)  # fmt: skip
@click.argument("folder")
@click.option("--kind", type=click.Choice(["exact", "hnsw"]), default="exact", show_default=True, help="Index type.")
def index_command(folder: str, kind: Literal["exact", "hnsw"]) -> None:
    """Build a search index of vectors.

    FOLDER is the output of `cse embed`. Needs pip install 'cse[search]'.
    """
    _build(folder, kind)


@click.command(
    epilog='\b\nExamples:\n  cse search data/vectors "The invoice is wrong."\n'
    '  cse search data/vectors "billing" "refund" -k 3 --json | jq .hits[0].id'
)
@click.argument("folder")
@click.argument("queries", nargs=-1, required=True, metavar="QUERY...")
@click.option("-k", type=click.IntRange(min=1), default=10, show_default=True, help="Results per query.")
@click.option("--model", help="Bundle or BANK:NAME that made the vectors; default: its path then.")
@click.option("--role", help="Role of the queries; default: query, if the rows were embedded in a role.")
@_provider_option
@click.option("--scan", is_flag=True, help="Compare every vector, even if there is an index.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per query.")
def search(
    folder: str,
    queries: Sequence[str],
    k: int,
    model: str | None,
    role: str | None,
    provider: str,
    scan: bool,
    as_json: bool,
) -> None:
    """Print the rows of FOLDER nearest to each QUERY.

    Prints rank, cosine, id, and the text if it was stored. Uses the index if there is one; otherwise scans all shards,
    one by one.
    """
    from cse.scale.corpus.output import open_vectors
    from cse.scale.corpus.search import open_encoder, role_of_queries, search_vectors

    vectors = open_vectors(folder)
    encoder = open_encoder(vectors, model, provider)
    role = role or role_of_queries(vectors, encoder)
    found = search_vectors(vectors, encoder.encode(list(queries), normalize=True, role=role), k, scan=scan)
    for query, hits in zip(queries, found, strict=True):
        if as_json:
            listed = [_as_json(rank, hit, vectors.text) for rank, hit in enumerate(hits, start=1)]
            click.echo(escaped(json.dumps({"query": query, "hits": listed}, ensure_ascii=False)))
            continue
        if len(queries) > 1:
            click.echo(one_line(query))
        for rank, hit in enumerate(hits, start=1):
            words = "" if hit.text is None else f"  {one_line(hit.text)}"
            click.echo(f"{rank:4}  {hit.cosine:7.4f}  {one_line(str(hit.id))}{words}")


def _as_json(rank: int, hit: Hit, text: bool) -> dict[str, Any]:
    tree: dict[str, Any] = {"rank": rank, "id": hit.id, "cosine": round(hit.cosine, 6)}
    return {**tree, "text": hit.text} if text else tree


def _build(folder: str, kind: Literal["exact", "hnsw"]) -> None:
    from cse.scale.corpus.index import build_index
    from cse.scale.corpus.output import open_vectors

    vectors = open_vectors(folder)
    size = build_index(vectors, kind)
    click.echo(f"{folder}: index {kind} of {vectors.plan.rows:,} vectors, {size / 1e6:,.1f} MB", err=True)
