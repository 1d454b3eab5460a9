"""``cse index`` and ``cse search``: make and keep a table of documents, search it by words and vectors."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from cse.cli.options import device_option, encoding_option
from cse.errors import counted, escaped, one_line
from cse.stages.common import BARE

if TYPE_CHECKING:
    from cse.search.rows import Kind
    from cse.search.table import Hit, Mode

_EXAMPLES = """\b
Examples:
  cse index manual/ --out data/manual && cse search data/manual "how long does a transfer take"
  cse index 'tickets/*.jsonl' --out data/tickets --text-column body --id-column ticket --keep-column queue
  cse index tickets.csv --out data/tickets --model data/bank --domain-column queue
  cse index my-search --out data/search                   (BEIR's layout; then cse search data/search --task my-search)
  cse index s3://bucket/corpus --out s3://bucket/index --workers 16      (pip install s3fs)

\b
Run it again, after a kill or when texts change: what the table has is not embedded again. docs/search.md says more.
"""


@click.command("index", epilog=_EXAMPLES)
@click.argument("texts", required=False)
@click.option(
    "--out", required=True, metavar="TABLE", help="Folder of the table: a path, or a URL such as s3://bucket/x."
)
@click.option("--model", help=f"Bundle, or a bank's domain (BANK:NAME); default: the bare backbone, in {BARE}.")
@click.option("--text-column", help="Text column; default: text, body, content or abstract.")
@click.option("--id-column", help="Column with ids, whole numbers or text; default: _id or id, or else row numbers.")
@click.option("--domain-column", help="Column that names each row's domain; --model is a bank.")
@click.option("--title-column", help="Column with a title to put before each text; default: title, if there is one.")
@click.option("--role", help="Put the model's task text of this role before each text, for instance passage.")
@click.option("--keep-column", multiple=True, help="Column to store with each text, for filters; may be repeated.")
@encoding_option
@click.option("--changes", is_flag=True, help="TEXTS has only what is new or changed: other documents stay.")
@click.option("--workers", type=click.IntRange(min=0), default=0, show_default=True, help="Ray processes; 0: none.")
@device_option
@click.option(
    "--kind",
    type=click.Choice(["auto", "exact", "approximate"]),
    default="auto",
    show_default=True,
    help="Compare every vector, or the nearest partitions; auto: above 20,000 rows approximate.",
)
@click.option("--again", is_flag=True, help="Start over: delete the table first.")
@click.option("--verify", is_flag=True, help="Compare every byte of the table with what was written, and do no more.")
def index_command(
    texts: str | None,
    out: str,
    model: str | None,
    text_column: str | None,
    id_column: str | None,
    domain_column: str | None,
    title_column: str | None,
    role: str | None,
    keep_column: tuple[str, ...],
    encoding: str,
    changes: bool,
    workers: int,
    device: str,
    kind: Kind,
    again: bool,
    verify: bool,
) -> None:
    """Bring a table up to date with TEXTS: embed what is new or changed, delete what is gone.

    TEXTS is a file, folder or quoted glob, as a path or URL, of txt, csv, tsv, jsonl, json, parquet, Markdown or HTML,
    or a folder in BEIR's layout. TABLE is a LanceDB database, which other tools can read. Long texts are split into
    passages. Searches that run meanwhile finish with the table as it was. Needs pip install 'cse[search]'.
    """
    from cse.data.checks import saying_nothing
    from cse.search.corpus import Columns, Corpus

    if (texts is None) != verify:
        raise click.UsageError("give TEXTS, or --verify and none")
    from cse.search.index import index_corpus, verify_table

    if texts is None:
        click.echo(f"{out}: all {verify_table(out)} files of the index are as they were written", err=True)
        return
    from cse.search.rows import Choices
    from cse.search.table import refuse_foreign
    from cse.storage import Folder

    columns = Columns(text_column, id_column, domain_column, title_column, keep_column, encoding)
    choices = Choices(columns, role, workers, device, changes=changes, again=again, kind=kind)
    if model is None:
        refuse_foreign(Folder(out))  # before a model is made
        Corpus(texts, columns, Folder(out))
        model = _default_model()
    done = index_corpus(texts, out, model, choices)
    if done.cut:
        were = "1 text was" if done.cut == 1 else f"{done.cut:,} texts were"
        click.echo(f"{were} cut at {done.limit} tokens, the model's limit, for vectors, not for words", err=True)
    if done.blank:
        click.echo(f"left out: {saying_nothing(done.blank, 'ids')}", err=True)
    rows = "" if done.rows == done.documents else f" in {done.rows:,} passages"
    how = "approximate" if done.approximate else "exact"
    did = f"{done.new - done.changed:,} added, {done.changed:,} changed, {done.gone:,} removed"
    click.echo(f"{out}: {counted(done.documents, 'document')}{rows}, {how} search; {did}", err=True)


def _default_model() -> str:
    """Return the bundle of the bare backbone of ``params.yaml``, made now if there is none."""
    from pathlib import Path

    from cse.cli.options import settings_from
    from cse.model.declared import is_word_file
    from cse.runtime.bank import meaning_of
    from cse.runtime.bundle import read_manifest
    from cse.settings import PARAMS_FILE
    from cse.settings.load import settings_with

    settings = settings_from(Path(PARAMS_FILE), (), optional=True, any_view=True)
    name = settings.backbone.name
    if meaning_of(BARE).encodes and read_manifest(BARE).backbone.get("name") == name:
        return str(BARE)
    from cse.cli.missing import naming_extra

    click.echo(f"index: exporting the bare backbone {name} to {BARE}", err=True)
    with naming_extra(f"{name}: the bare backbone"):
        from cse.export.minilm import is_minilm, write_minilm
        from cse.model.backbone_files import find_backbone
    if not is_word_file(Path(name)) and is_minilm(files := find_backbone(name)):
        write_minilm(files, BARE)
        return str(BARE)
    with naming_extra(f"{name}: the bare backbone"):
        from cse.stages.export import export_stage
    plain = settings_with(settings, {"export.precision": "fp32"})
    export_stage(plain, model=name, prepared=None, metrics=(), bundle=BARE)
    return str(BARE)


@click.command(
    epilog='\b\nExamples:\n  cse search data/tickets "The invoice is wrong."\n'
    '  cse search data/tickets "billing" "refund" -k 3 --json | jq .hits[0].id\n'
    '  cse search data/tickets "refund" --where "year >= 2024 AND queue = \'billing\'"\n'
    "  cse search data/search --task my-search        nDCG@10 of vectors, words and both"
)
@click.argument("table")
@click.argument("queries", nargs=-1, metavar="QUERY...")
@click.option("-k", "--topk", "k", type=click.IntRange(min=1), default=10, show_default=True, help="Results per query.")
@click.option(
    "--mode",
    type=click.Choice(["hybrid", "vectors", "words"]),
    show_default="hybrid, with --task all",
    help="What ranks: cosine, words (BM25), or half of each.",
)
@click.option("--where", metavar="SQL", help="Search the rows that meet a condition on id, text and kept columns.")
@click.option("--exact", is_flag=True, help="Compare every vector, even if the search is approximate.")
@click.option("--full", is_flag=True, help="Print the whole text of each document, not a part of it.")
@click.option("--task", metavar="FOLDER", help="Measure with these queries and judgements (BEIR's layout) instead.")
@click.option("--model", help="Bundle or BANK:NAME that made the vectors; default: its path then.")
@click.option("--role", help="Role of the queries; default: query, with a query side or where rows have a role.")
@device_option
@click.option(
    "--json", "as_json", is_flag=True,
    help="Print one JSON object per query. A hybrid score is at most 1.15: half the cosine and half BM25, then what "
    "documents that are alike lend.",
)  # fmt: skip
def search(
    table: str,
    queries: Sequence[str],
    k: int,
    mode: Mode | None,
    where: str | None,
    exact: bool,
    full: bool,
    task: str | None,
    model: str | None,
    role: str | None,
    device: str,
    as_json: bool,
) -> None:
    """Print the documents of TABLE that answer each QUERY best, each by its best passage.

    Prints rank, score, of a hybrid search the cosine and BM25 behind it, id, and the text around the query's words.
    `cse index` makes TABLE.
    """
    from cse.search.model import open_encoder, role_of_queries
    from cse.search.table import MODES, open_table, snippet

    if bool(queries) == (task is not None):
        raise click.UsageError("give queries, or --task and none")
    if task is not None and (where or exact or full):
        raise click.UsageError("--task measures whole searches; leave out --where, --exact and --full")
    modes: tuple[Mode, ...] = (mode,) if mode else MODES if task is not None else ("hybrid",)
    there = open_table(table)
    encoder = None
    if modes != ("words",):
        encoder = open_encoder(table, there.facts, model, device)
        role = role or role_of_queries(there.facts, encoder)
    if task is not None:
        from cse.evaluation.retrieval import measure_search

        scores = measure_search(there, encoder, role, task, modes)
        click.echo(json.dumps(scores) if as_json else _table(scores))
        return
    (mode,) = modes
    vectors = None if encoder is None else encoder.encode(list(queries), normalize=True, role=role)
    found = there.search(queries, vectors, k, mode, where=where, exact=exact)
    for query, hits in zip(queries, found, strict=True):
        whole = there.whole(hits) if full else {}
        if as_json:
            listed = [_as_json(rank, hit, whole.get(hit.id)) for rank, hit in enumerate(hits, start=1)]
            answer = {"query": query, "mode": mode, "hits": listed}
            plain = "utf" not in sys.stdout.encoding.lower()
            click.echo(escaped(json.dumps(answer, ensure_ascii=plain)))
            continue
        if len(queries) > 1:
            click.echo(one_line(query))
        if not hits:
            click.echo(f"{one_line(query)[:80]}: nothing found", err=True)
        for rank, hit in enumerate(hits, start=1):
            text = whole[hit.id] if full else snippet(hit.text, query)
            parts = {"vectors": hit.cosine, "words": hit.bm25} if mode == "hybrid" else {}
            both = "".join(f"  {name} {'-' if part is None else f'{part:.2f}':>5}" for name, part in parts.items())
            click.echo(f"{rank:4}  {hit.score:7.4f}{both}  {one_line(str(hit.id))}  {one_line(text)}")


def _as_json(rank: int, hit: Hit, whole: str | None) -> dict[str, Any]:
    scores = {"score": hit.score, "cosine": hit.cosine, "bm25": hit.bm25}
    rounded = {name: None if score is None else round(score, 6) for name, score in scores.items()}
    texts = {"passage": hit.passage, "text": hit.text, **({} if whole is None else {"document": whole})}
    return {"rank": rank, "id": hit.id, **rounded, **texts, **({"columns": hit.values} if hit.values else {})}


def _table(scores: Mapping[str, Mapping[str, float]]) -> str:
    """Return measures of each mode as a table."""
    head = next(iter(scores.values()))
    lines = [f"{mode:8}" + "".join(f"{value:12.2f}" for value in values.values()) for mode, values in scores.items()]
    return "\n".join([" " * 8 + "".join(f"{name:>12}" for name in head), *lines])
