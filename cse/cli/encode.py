"""``cse encode``: texts to a file of vectors."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from cse.cli.missing import naming_extra
from cse.cli.options import PATH, device_option, encoding_option
from cse.errors import CseError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from cse.evaluation.measures import TextEncoder
    from cse.runtime.classifier import Told

_COLUMNS = ["text", "embedding"]
_TOLD = ["label", "probability", "known"]  # behind the columns of the file
_CLASSIFIED = (".csv", ".jsonl", ".parquet")
_SHOWN, _WIDE = 10, 60  # rows on the screen, and characters of a text


@click.command(
    epilog="\b\nExamples:\n  cse encode data/bundle sentences.txt --out vectors.npy\n"
    "  cse encode data/bundle tickets.csv --column body --out vectors.parquet\n"
    "  cse encode data/bundle questions.txt --role query --out queries.npy\n"
    "  cse encode data/bundle tickets.csv --column body --classify\n"
    "  cse encode data/bundle tickets.csv --column body --classify --out labels.csv\n"
    "  cse encode data/bank:billing sentences.txt --out vectors.npy\n"
    "  cse encode data/bank tickets.csv --column body --domain-column queue --out vectors.npy"
)
@click.argument("model")
@click.argument("text", type=click.File(encoding="utf-8"), default="-")
@click.option(
    "--out", type=PATH,
    help="File of float32 vectors: .parquet or .jsonl with texts beside them, else .npy (lines, dimension).",
)  # fmt: skip
@click.option("--column", help="Column of csv, tsv, jsonl, parquet; default: a common name (text, sentence, ...).")
@click.option("--domain-column", help="Column that names each row's domain; MODEL is a bank.")
@encoding_option
@device_option
@click.option("--normalize/--raw", default=True, show_default=True, help="Scale vectors to unit length, or not.")
@click.option("--role", help="Role of the texts, such as query: its task text, or the query side.")
@click.option(
    "--classify", is_flag=True,
    help="No vectors: each row with its columns, its label, the probability and whether it is known, on the screen or "
    "in a .csv, .jsonl or .parquet, by a bundle or domains made of labelled texts.",
)  # fmt: skip
@click.option("--dimensions", type=click.IntRange(min=1), help="Numbers to keep of each vector (Matryoshka models).")
def encode(
    model: str, text: TextIO, out: Path | None, column: str | None, domain_column: str | None, encoding: str,
    device: str, normalize: bool, role: str | None, classify: bool, dimensions: int | None,
) -> None:  # fmt: skip
    """Embed TEXT, one vector per line or row, also for rows that say nothing, which are counted (the first row is 0).

    MODEL is a checkpoint, a bundle, a bank's domain (BANK:NAME, or BANK:auto for the nearest), or a backbone's folder
    or hub id. TEXT is a text file, csv, tsv, jsonl or parquet; default: standard input.
    """
    from cse.data.checks import saying_nothing
    from cse.outputs import check_file, publish_file
    from cse.runtime.onnx_encoder import OnnxEncoder
    from cse.runtime.tokens import is_blank

    if classify and (role or dimensions or not normalize or (out is not None and out.suffix not in _CLASSIFIED)):
        raise CseError(f"--classify: --out ends in {', '.join(_CLASSIFIED)}; without --raw, --role, --dimensions")
    if out is not None:
        if out.suffix in (".csv", ".tsv") and not classify:
            raise CseError(f"--out {out}: vectors go to .npy, .parquet or .jsonl; with --classify labels go to .csv")
        check_file(out, _made_here)
    elif not classify:
        raise CseError("Missing option '--out': name a file for the vectors, such as vectors.npy")
    lines, *domains = _columns(text, column, domain_column, encoding)
    encoder: TextEncoder = OnnxEncoder(model, provider=device) if domains else _open(model, device)
    if blank := [number for number, line in enumerate(lines) if is_blank(line)]:
        click.echo(f"their vectors mean nothing: {saying_nothing(blank, 'rows')}", err=True)
    if classify:
        if not isinstance(encoder, OnnxEncoder):
            raise CseError(f"{model}: no bundle, so it has no classifier; make one with `cse adapt --labels`")
        told = encoder.classify(lines, domain=domains[0] if domains else None)
        if out is None:
            _show(lines, told)
            return
        columns = _others(text, encoding) or {"text": lines}
        columns |= dict(zip(_TOLD, zip(*told, strict=True), strict=True))
        with publish_file(out) as target:
            _write(target, out.suffix, columns)
        click.echo(f"{out}: {len(told):,} texts, {sum(not one.known for one in told):,} of them not known", err=True)
        return
    asked: dict[str, Any] = {"role": role, "dimensions": dimensions}
    asked["domain"] = domains[0] if domains else None
    given = {name: value for name, value in asked.items() if value is not None}  # not every encoder takes every one
    vectors = encoder.encode(lines, normalize=normalize, show_progress_bar=True, **given)
    assert out is not None  # noqa: S101 - checked above
    with publish_file(out) as target:
        _write(target, out.suffix, dict(zip(_COLUMNS, (lines, vectors), strict=True)))
    click.echo(f"{out}: {vectors.shape[0]} vectors of {vectors.shape[1]} dimensions", err=True)


def _columns(stream: TextIO, column: str | None, domain_column: str | None, encoding: str) -> list[list[str]]:
    """Return the texts to encode, a column of a table or the lines of a text file, and the domain of each if asked."""
    from cse.data.checks import no_rows
    from cse.data.read import TABLES, ending, file_lines
    from cse.data.shape import read_texts

    source = Path(stream.name)
    if ending(source) in TABLES:
        rows = read_texts(source, column, domain_column, encoding)
        return [list(each) for each in zip(*rows, strict=True)]
    for option, name, lacks in (
        ("--domain-column", domain_column, "has no columns"),
        ("--column", column, "is read line by line"),
    ):
        if name is not None:
            raise CseError(f"{option} {name}: {source} {lacks}; use a {', '.join(TABLES)} file")
    lines = list(file_lines(stream.buffer, str(source), encoding))
    if not lines:
        raise no_rows(str(source))
    return [lines]


def _others(stream: TextIO, encoding: str) -> dict[str, Sequence[Any]]:
    """Return all columns of a table by name, none of a text file; one of the name of ours becomes ``given_NAME``."""
    from cse.data.read import TABLES, ending, open_table

    source = Path(stream.name)
    if ending(source) not in TABLES:
        return {}
    table, found = open_table(source, encoding), dict[str, Sequence[Any]]()
    names = [name for name in table.columns if name]  # Excel writes columns without a name
    for name, values in zip(names, zip(*(row for _, row in table.pick(names) if row), strict=True), strict=True):
        while name in _TOLD or name in found:
            name = f"given_{name}"
        found[name] = values
    return found


def _show(texts: Sequence[str], told: Sequence[Told]) -> None:
    """Print what the first texts are told as, and how many have each label."""
    from cse.evaluation.table import format_rows

    rows = [["text", *_TOLD]]
    for text, one in zip(texts[:_SHOWN], told, strict=False):
        start = " ".join(text[: 2 * _WIDE].split())
        shown = start if len(start) <= _WIDE else f"{start[:_WIDE]}..."
        rows.append([shown, one.label, f"{one.probability:.2f}", "yes" if one.known else "no"])
    click.echo(format_rows(rows, "text"), nl=False)
    counts = Counter(one.label for one in told if one.known)
    labels = ", ".join(f"{label} {count:,}" for label, count in counts.most_common(_SHOWN))
    more = f", {len(counts) - _SHOWN} labels more" if len(counts) > _SHOWN else ""
    unknown = len(told) - counts.total()
    click.echo(f"{len(told):,} texts: {labels}{more}{', ' if labels else ''}{unknown:,} not known")
    if len(told) > _SHOWN:
        click.echo("all rows: --out FILE.csv", err=True)


def _open(model: str, device: str) -> TextEncoder:
    """Return an encoder; a bundle or a bank's domain opens without the training packages."""
    from cse.model.declared import check_model
    from cse.runtime.onnx_encoder import open_onnx

    onnx = open_onnx(check_model(model), device=device)
    if onnx is not None:
        return onnx
    if device == "openvino":
        raise CseError(f"--device openvino: {model} is no bundle or bank; make one with `cse export` and give that")
    with naming_extra(f"{model}: not a bundle or a bank's domain; any other model"):
        from cse.stages.open_model import open_model
    return open_model(model, device=device)


def _made_here(path: Path) -> bool:
    """Return whether a file, by its kind, is one that this command writes."""
    from cse.files import begins_with

    if path.suffix == ".jsonl":
        with path.open("rb") as stream, suppress(ValueError, RecursionError, AttributeError):
            return _ours([*json.loads(stream.readline())])
        return False
    if path.suffix == ".parquet" and begins_with(b"PAR1")(path):
        import pyarrow as pa
        import pyarrow.parquet as pq

        with suppress(pa.ArrowInvalid):
            return _ours(pq.read_schema(path).names)
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="", errors="replace") as stream, suppress(StopIteration, csv.Error):
            return _ours(next(csv.reader(stream)))
        return False
    return path.suffix != ".parquet" and begins_with(b"\x93NUMPY")(path)


def _ours(columns: Sequence[str]) -> bool:
    return columns == _COLUMNS or columns[-len(_TOLD) :] == _TOLD


def _write(path: Path, kind: str, columns: Mapping[str, Sequence[Any] | NDArray[np.float32]]) -> None:
    """Write columns, which end in ``embedding`` or in ``_TOLD``; vectors (n, d) alone where a file has no more."""
    rows = zip(*columns.values(), strict=True)
    if kind == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        def array(name: str, values: Sequence[Any] | NDArray[np.float32]) -> pa.Array:
            if name == "embedding":
                return pa.array(list(values), pa.list_(pa.float32(), len(values[0])))
            try:
                return pa.array(list(values), pa.float32() if name == "probability" else None)
            except (pa.ArrowInvalid, pa.ArrowTypeError):  # values of several kinds, of JSON
                return pa.array([None if value is None else str(value) for value in values])

        pq.write_table(pa.table({name: array(name, values) for name, values in columns.items()}), path)
    elif kind == ".jsonl":
        with path.open("w", encoding="utf-8", newline="\n") as stream:
            for row in rows:
                tree = dict(zip(columns, row, strict=True))
                stream.write(json.dumps(tree, ensure_ascii=False, default=_plain) + "\n")
    elif kind == ".csv" and "label" in columns:
        from cse.files import write_csv

        write_csv(path, [*columns], [(*given, f"{chance:.4f}", str(known).lower()) for *given, chance, known in rows])
    else:
        import numpy as np

        from cse.files import write_array

        write_array(path, np.asarray(columns["embedding"]))


def _plain(value: Any) -> Any:
    """Return what JSON can say of a vector, or of a value of parquet such as a date."""
    import numpy as np

    return value.tolist() if isinstance(value, np.ndarray) else str(value)
