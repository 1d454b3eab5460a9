"""Commands of ``cse``; each imports what it needs only when it runs, to keep ``--help`` instant."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click

from cse.cli.bank import bank
from cse.cli.corpus import embed, index_command, search
from cse.cli.evaluate import evaluate
from cse.cli.export import export
from cse.cli.missing import naming_extra
from cse.cli.options import params_option, set_option, settings_from
from cse.cli.preset import preset
from cse.cli.report import report
from cse.errors import CseError
from cse.settings.tree import impossible_rows
from cse.stages.common import CHECKPOINT, CORRUPTED, DEBUG_VARIABLE, METRICS, PLOTS, PREPARED, run_safely

_BROUGHT = "cse.commands"  # entry points
_EPILOG = """\b
A first run, with generated data and the built-in MiniLM backbone:
  cse prepare                      text            -> data/prepared
  cse train                        prompts         -> data/checkpoint
  cse evaluate                     scores          -> data/metrics
  cse export                       ONNX            -> data/bundle
  echo "A cat sleeps." | cse encode data/bundle --out vectors.npy

\b
`dvc repro` runs the first four and skips whatever has not changed.
Settings are in params.yaml (see docs/settings.md); published systems are presets:
  cse preset list
  cse preset use promcse-eh-bert-base
"""


class _Group(click.Group):
    """A group in workflow order, plus the commands that other packages register (``cse.commands``)."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *sorted(entry_points(group=_BROUGHT).names)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for command in entry_points(group=_BROUGHT, name=cmd_name):
            try:
                with naming_extra():
                    brought: click.Command = command.load()
            except CseError as error:
                return _cannot_run(cmd_name, error)
            return brought
        return super().get_command(ctx, cmd_name)


def _cannot_run(name: str, reason: CseError) -> click.Command:
    """Return what stands for a command whose packages are missing: listed in the help, refused when called."""

    def refuse(**_: object) -> None:
        raise reason

    anything = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)
    lenient = {"ignore_unknown_options": True}
    return click.Command(name, lenient, refuse, [anything], short_help="(needs more packages)", add_help_option=False)


@click.group(cls=_Group, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="cse")
@click.option("--debug", is_flag=True, help="Show the full traceback of an error.")
def cli(debug: bool) -> None:
    """Contrastive sentence embeddings from soft prompts on a frozen language model."""
    if debug:
        os.environ[DEBUG_VARIABLE] = "1"


cli.add_command(preset)


@cli.command(epilog="\b\nExample:\n  cse prepare -s data.source=files -s data.train_path=my.csv -s data.view=pairs")
@params_option
@set_option
@click.option("--out", type=click.Path(path_type=Path), default=PREPARED, show_default=True, help="Output folder.")
def prepare(params: Path, overrides: Sequence[str], out: Path) -> None:
    """Read and clean the text and write it as Arrow data sets.

    Reports what was dropped.
    """
    from cse.stages.prepare import prepare_stage

    settings = settings_from(params, overrides, any_view=True)
    metrics = METRICS / "prepare.json" if out == PREPARED else Path(f"{out}.json")
    prepare_stage(settings, prepared=out, metrics=metrics)
    for problem in impossible_rows(settings)[:1]:
        click.echo(f"note        `cse train` will refuse these rows with the current settings: {problem}")
    if settings.objective.replaced_tokens.corrupts_beforehand:
        click.echo("note        run `cse corrupt` before `cse train`: objective.replaced_tokens.corruption is prepared")


@cli.command(epilog="\b\nExample:\n  cse corrupt -s objective.replaced_tokens.generator=distilbert/distilroberta-base")
@params_option
@set_option
@click.option("--data", type=click.Path(path_type=Path), default=PREPARED, show_default=True, help="Prepared data.")
def corrupt(params: Path, overrides: Sequence[str], data: Path) -> None:
    """Corrupt prepared rows for replaced-token detection.

    Needed only if objective.replaced_tokens.corruption is `prepared`. Corrupts the rows once per epoch and writes them
    next to the prepared data.
    """
    from cse.stages.corrupt import corrupt_stage

    corrupt_stage(settings_from(params, overrides, prepared=data), prepared=data, corrupted=_corrupted(data))


@cli.command(epilog="\b\nExample:\n  cse train -s train.learning_rate=3e-2 -s prompt.length=16")
@params_option
@set_option
@click.option("--data", type=click.Path(path_type=Path), default=PREPARED, show_default=True, help="Prepared data.")
@click.option("--out", type=click.Path(path_type=Path), default=CHECKPOINT, show_default=True, help="Output folder.")
def train(params: Path, overrides: Sequence[str], data: Path, out: Path) -> None:
    """Train prompts (or the whole model) and keep the best checkpoint.

    To resume a killed run from its last saved state, run the same command again.
    """
    from cse.stages.train import train_stage

    usual = out == CHECKPOINT
    train_stage(
        settings_from(params, overrides, prepared=data),
        prepared=data,
        corrupted=_corrupted(data),
        checkpoint=out,
        metrics=METRICS / "train.json" if usual else Path(f"{out}.json"),
        plots=PLOTS / "train" if usual else Path(f"{out}.plots"),
    )


@cli.command(epilog="\b\nExample:\n  cse post data/checkpoint --kind whitening --out data/whitened")
@click.argument("model")
@params_option
@set_option
@click.option("--kind", type=click.Choice(["whitening", "flow"]), required=True, help="Post-processing to add.")
@click.option("--data", type=click.Path(path_type=Path), default=PREPARED, show_default=True, help="Prepared data.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the new checkpoint.")
def post(model: str, params: Path, overrides: Sequence[str], kind: str, data: Path, out: Path) -> None:
    """Fit whitening or flow and add it to MODEL.

    It is fitted on the training sentences. MODEL is a checkpoint, or a bare backbone given by folder, hub id or file of
    word vectors. Set further options in group post of params.yaml.
    """
    from cse.stages.post import put_behind

    settings = settings_from(params, [*overrides, f"post.kind={kind}"], optional=True)
    put_behind(model, settings.post, prepared=data, out=out)


cli.add_command(evaluate)
cli.add_command(report)
cli.add_command(export)


@cli.command(
    epilog="\b\nExamples:\n  cse encode data/bundle sentences.txt --out vectors.npy\n"
    "  cse encode data/bundle tickets.csv --column body --out vectors.npy\n"
    "  cse encode data/bank:billing sentences.txt --out vectors.npy\n"
    "  cse encode data/bank tickets.csv --column body --domain-column queue --out vectors.npy"
)
@click.argument("model")
@click.argument("text", type=click.File(encoding="utf-8"), default="-")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Output .npy, float32 (lines, dimension).")
@click.option("--column", help="Column of csv, tsv, jsonl, parquet; default: a common name (text, sentence, ...).")
@click.option("--domain-column", help="Column that names each row's domain; MODEL is a bank.")
@click.option(
    "--batch-size", type=click.IntRange(min=1), default=64, show_default=True, help="Sentences per forward pass."
)
@click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True, help="Where it runs."
)
@click.option("--normalize/--raw", default=True, show_default=True, help="Scale vectors to unit length, or not.")
def encode(
    model: str,
    text: Any,
    out: Path,
    column: str | None,
    domain_column: str | None,
    batch_size: int,
    device: str,
    normalize: bool,
) -> None:
    """Embed TEXT, one vector per line or row.

    MODEL is a checkpoint, a bundle, a bank's domain (BANK:NAME, or BANK:auto for the nearest), or a backbone's folder
    or hub id. TEXT is a text file, csv, tsv, jsonl or parquet; default: standard input.
    """
    from cse.files import write_array
    from cse.outputs import check_file, is_npy, publish_file
    from cse.runtime.opening import open_bank

    check_file(out, is_npy)
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "normalize": normalize,
        "show_progress_bar": sys.stderr.isatty(),
    }
    if domain_column is None:
        lines, encoder = _texts(text, column), _open(model, device)
    else:
        lines, options["domain"] = _texts_and_domains(text, column, domain_column)
        encoder = open_bank(model, device=device)
    vectors = encoder.encode(lines, **options)
    with publish_file(out) as target:
        write_array(target, vectors)
    click.echo(f"{out}: {vectors.shape[0]} vectors of {vectors.shape[1]} dimensions", err=True)


cli.add_command(bank)
cli.add_command(embed)
cli.add_command(index_command)
cli.add_command(search)


def main() -> None:
    """Run the command line; print errors as one line and exit with code 2."""

    def work() -> None:
        try:
            with naming_extra():
                cli.main(prog_name="cse", standalone_mode=False)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
        except click.exceptions.Abort:
            raise KeyboardInterrupt from None
        except click.ClickException as error:
            raise CseError(f"{error.format_message()}{_help_hint(error)}") from None

    sys.exit(run_safely(work))


def _help_hint(error: click.ClickException) -> str:
    ctx = getattr(error, "ctx", None)
    return "" if ctx is None else f" (see {ctx.command_path} --help)"


def _open(model: str, device: str) -> Any:
    """Return an encoder; a bundle or a bank's domain opens without the training packages."""
    from cse.runtime.opening import open_onnx

    onnx = open_onnx(model, device=device)
    if onnx is not None:
        return onnx
    with naming_extra(f"{model}: not a bundle or a bank's domain; any other model"):
        from cse.stages.open_model import open_model
    return open_model(model, device=device)


def _texts(stream: Any, column: str | None) -> list[str]:
    """Return the texts to encode: a column of a table, or the lines of a text file."""
    from cse.data.checks import no_rows
    from cse.data.readers import read_texts
    from cse.data.tables import TABLES
    from cse.data.text_files import file_lines

    source = Path(getattr(stream, "name", "<stdin>"))
    if source.suffix.lower() in TABLES:
        return read_texts(source, column)
    if column is not None:
        raise CseError(f"--column {column}: {source} is read line by line; use a {', '.join(TABLES)} file")
    lines = list(file_lines(stream.buffer, str(source)))
    if not lines:
        raise no_rows(str(source))
    return lines


def _texts_and_domains(stream: Any, column: str | None, domain_column: str) -> tuple[list[str], list[str]]:
    """Return the texts to encode and the name of each one's domain."""
    from cse.data.readers import read_texts_and_names
    from cse.data.tables import TABLES

    source = Path(getattr(stream, "name", "<stdin>"))
    if source.suffix.lower() not in TABLES:
        raise CseError(f"--domain-column {domain_column}: {source} has no columns; use a {', '.join(TABLES)} file")
    return read_texts_and_names(source, column, domain_column)


def _corrupted(prepared: Path) -> Path:
    """Return the folder of the corrupted rows that belong to prepared data."""
    return CORRUPTED if prepared == PREPARED else prepared.with_name(f"{prepared.name}-corrupted")
