"""``cse embed``, ``cse index`` and ``cse search``: embed a whole corpus, index its vectors and words, search it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

import click

from cse.choices import Provider
from cse.cli.options import encoding_option
from cse.errors import escaped, one_line
from cse.stages.common import BUNDLE

if TYPE_CHECKING:
    from cse.scale.corpus.index import Kind
    from cse.scale.corpus.table import Hit, Mode, SearchTable

_provider_option = click.option(
    "--provider", type=click.Choice(get_args(Provider)), default="auto", show_default=True, help="Where it runs."
)
_EMBED_EXAMPLES = """\b
Examples:
  cse embed sentences.txt --out data/vectors
  cse embed 'tickets/*.jsonl' --out data/vectors --text-column body --id-column ticket --keep-text
  cse embed tickets.csv --out data/vectors --model data/bank --domain-column queue
  cse embed manual.jsonl --out data/vectors --role passage            (E5, Qwen3-Embedding: models with task texts)
  cse embed s3://bucket/corpus --out s3://bucket/vectors --workers 16      (pip install s3fs)
  cse embed my-search/corpus.jsonl --out data/search --id-column _id --title-column title --keep-text
  cse embed sentences.txt --out data/vectors --keep-text --index && cse search data/vectors "A cat sleeps."

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
@click.option("--title-column", help="Column with a title to put before each text.")
@click.option("--role", help="Put the model's task text of this role before each row, for instance passage.")
@click.option(
    "--keep-text", is_flag=True, help="Store the text with each vector; search finds its words and prints it."
)
@click.option("--keep-column", multiple=True, help="Column to store with each vector, for filters; may be repeated.")
@encoding_option
@click.option("--shard-rows", type=click.IntRange(min=1), default=8192, show_default=True, help="Most rows per file.")
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    help="Processes; default: one per core or GPU, and this one alone for a single shard. 0: this process, no Ray.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    help="Most rows per forward pass; default: 64, on a GPU as many as hold 16,384 tokens.",
)
@_provider_option
@click.option("--normalize/--raw", default=True, show_default=True, help="Scale vectors to unit length, or not.")
@click.option("--index", is_flag=True, help="Also build the search index (`cse index`).")
@click.option("--again", is_flag=True, help="Start over: delete what an earlier run wrote to the folder.")
def embed(
    corpus: str,
    out: str,
    model: str,
    text_column: str,
    id_column: str | None,
    domain_column: str | None,
    title_column: str | None,
    role: str | None,
    keep_text: bool,
    keep_column: tuple[str, ...],
    encoding: str,
    shard_rows: int,
    workers: int | None,
    batch_size: int | None,
    provider: str,
    normalize: bool,
    index: bool,
    again: bool,
) -> None:
    """Embed every row of a corpus.

    CORPUS is a file, folder or quoted glob, as a path or URL, of txt, csv, tsv, jsonl or parquet.

    Writes parquet files of at most --shard-rows rows with columns id and embedding (and text, and those kept), using
    all cores or GPUs.
    """
    from cse.data.checks import saying_nothing
    from cse.scale.corpus.columns import Columns
    from cse.scale.corpus.embed import embed_corpus
    from cse.scale.corpus.plan import Choices

    columns = Columns(text_column, id_column, domain_column, title_column, keep_column, encoding)
    choices = Choices(columns, keep_text, shard_rows, batch_size, normalize, provider, role)
    done = embed_corpus(corpus, out, model, choices, workers=workers, again=again)
    if done.truncated:
        click.echo(done.cut, err=True)
    if done.left_out:
        click.echo(f"left out: {saying_nothing(done.left_out, 'ids')}", err=True)
    if index:
        _build(out, "auto")
    before = f", {done.found:,} of them from earlier runs" if done.found else ""
    shards = "1 shard" if done.shards == 1 else f"{done.shards:,} shards"
    click.echo(f"{out}: {done.rows:,} vectors of {done.dimension} dimensions in {shards}{before}", err=True)


@click.command(
    "index", epilog="\b\nExamples:\n  cse index data/vectors\n"
    "  cse index data/vectors --kind approximate      below 20,000 rows, too\n"
    "  cse index data/vectors --update data/changes   rows of another `cse embed`: new ids are added, others replaced"
)  # fmt: skip
@click.argument("folder")
@click.option(
    "--kind",
    type=click.Choice(["auto", "exact", "approximate"]),
    default="auto",
    show_default=True,
    help="Compare every vector, or the nearest partitions; auto: above 20,000 rows approximate.",
)
@click.option("--update", metavar="CHANGES", help="Bring the index up to date with the vectors in this folder, by id.")
@click.option("--verify", is_flag=True, help="Compare every byte of the index with what was written, and do no more.")
def index_command(folder: str, kind: Kind, update: str | None, verify: bool) -> None:
    """Build the search index of vectors and, if they were stored, texts.

    FOLDER is the output of `cse embed`. The index is a LanceDB table, FOLDER/index.lance, which other tools can read:
    docs/corpus.md. Searches that run meanwhile finish with the index as it was. Needs pip install 'cse[search]'.
    """
    if verify:
        from cse.scale.corpus.index import verify_table

        click.echo(f"{folder}: all {verify_table(folder)} files of the index are as they were written", err=True)
        return
    if update is None:
        _build(folder, kind)
        return
    from cse.scale.corpus.index import update_table
    from cse.scale.corpus.output import open_vectors

    replaced, added, removed = update_table(folder, open_vectors(update))
    gone = f", {removed:,} removed, whose text says nothing now" if removed else ""
    click.echo(f"{folder}: {replaced:,} rows replaced, {added:,} added{gone}", err=True)


@click.command(
    epilog='\b\nExamples:\n  cse search data/vectors "The invoice is wrong."\n'
    '  cse search data/vectors "billing" "refund" -k 3 --json | jq .hits[0].id\n'
    '  cse search data/vectors "refund" --where "year >= 2024 AND queue = \'billing\'"\n'
    "  cse search data/search --task my-search        nDCG@10 of vectors, words and both"
)
@click.argument("folder")
@click.argument("queries", nargs=-1, metavar="QUERY...")
@click.option("-k", type=click.IntRange(min=1), default=10, show_default=True, help="Results per query.")
@click.option(
    "--mode",
    type=click.Choice(["hybrid", "vectors", "words"]),
    help="What ranks: cosine, words (BM25), or half of each; default: hybrid, without stored text vectors.",
)
@click.option("--where", metavar="SQL", help="Search the rows that meet a condition on id, text and kept columns.")
@click.option("--exact", is_flag=True, help="Compare every vector, even if the index is approximate.")
@click.option("--task", metavar="FOLDER", help="Measure with these queries and judgements (BEIR's layout) instead.")
@click.option("--model", help="Bundle or BANK:NAME that made the vectors; default: its path then.")
@click.option("--role", help="Role of the queries; default: query, with a query side or where rows have a role.")
@_provider_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per query.")
def search(
    folder: str,
    queries: Sequence[str],
    k: int,
    mode: Mode | None,
    where: str | None,
    exact: bool,
    task: str | None,
    model: str | None,
    role: str | None,
    provider: str,
    as_json: bool,
) -> None:
    """Print the rows of FOLDER that answer each QUERY best.

    Prints rank, score, of a hybrid search the cosine and BM25 behind it, id, and the text if it was stored. `cse index`
    builds the index that it searches.
    """
    from cse.scale.corpus.search import changed_queries, open_encoder, role_of_queries
    from cse.scale.corpus.table import open_table

    if bool(queries) == (task is not None):
        raise click.UsageError("give queries, or --task and none")
    table = open_table(folder)
    mode = table.mode(mode)
    encoder = None if mode == "words" and task is None else open_encoder(table, model, provider)
    if encoder is not None and (changed := changed_queries(table, encoder)):
        click.echo(changed, err=True)
    if task is not None and encoder is not None:
        _measure(table, encoder, role or role_of_queries(table, encoder), task, as_json)
        return
    vectors = None
    if encoder is not None:
        vectors = encoder.encode(list(queries), normalize=True, role=role or role_of_queries(table, encoder))
    found = table.search(queries, vectors, k, mode, where=where, exact=exact)
    for query, hits in zip(queries, found, strict=True):
        if as_json:
            listed = [_as_json(rank, hit) for rank, hit in enumerate(hits, start=1)]
            answer = {"query": query, "mode": mode, "hits": listed}
            plain = "utf" not in sys.stdout.encoding.lower()
            click.echo(escaped(json.dumps(answer, ensure_ascii=plain)))
            continue
        if len(queries) > 1:
            click.echo(one_line(query))
        if not hits:
            click.echo(f"{one_line(query)[:80]}: nothing found", err=True)
        for rank, hit in enumerate(hits, start=1):
            text = f"  {one_line(hit.values['text'])}" if "text" in hit.values else ""
            parts = {"vectors": hit.cosine, "words": hit.bm25} if mode == "hybrid" else {}
            both = "".join(f"  {name} {'-' if part is None else f'{part:.2f}':>5}" for name, part in parts.items())
            click.echo(f"{rank:4}  {hit.score:7.4f}{both}  {one_line(str(hit.id))}{text}")


def _as_json(rank: int, hit: Hit) -> dict[str, Any]:
    scores = {"score": hit.score, "cosine": hit.cosine, "bm25": hit.bm25}
    rounded = {name: None if score is None else round(score, 6) for name, score in scores.items()}
    kept = {name: value for name, value in hit.values.items() if name != "text"}
    text = {"text": hit.values["text"]} if "text" in hit.values else {}
    return {"rank": rank, "id": hit.id, **rounded, **text, **({"columns": kept} if kept else {})}


def _measure(table: SearchTable, encoder: Any, role: str | None, task: str, as_json: bool) -> None:
    from cse.scale.corpus.search import FOUND, measure_search

    scores = measure_search(table, encoder, role, task)
    if as_json:
        click.echo(json.dumps(scores))
        return
    click.echo(" " * 8 + "".join(f"{name:>12}" for name in FOUND))
    for mode, values in scores.items():
        click.echo(f"{mode:8}" + "".join(f"{values[name]:12.2f}" for name in FOUND))


def _build(folder: str, kind: Kind) -> None:
    from cse.scale.corpus.index import build_table
    from cse.scale.corpus.output import open_vectors

    vectors = open_vectors(folder)
    table = build_table(vectors, kind)
    words = " and their words" if table.has_text else ", without words: no text was stored (--keep-text)"
    click.echo(
        f"{folder}: {'an approximate' if table.approximate else 'an exact'} index of {len(table):,} vectors{words}",
        err=True,
    )
