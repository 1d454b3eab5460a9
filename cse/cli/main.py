"""Commands of ``cse``; each imports what it needs only when it runs, to keep ``--help`` instant."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from itertools import islice
from pathlib import Path

import click

from cse.cli.adapt import adapt
from cse.cli.bank import bank
from cse.cli.encode import encode
from cse.cli.evaluate import evaluate
from cse.cli.exchange import export, import_command, pull, push
from cse.cli.missing import naming_extra
from cse.cli.options import PATH, check_given, data_option, settings_from, settings_options
from cse.cli.report import compare, report
from cse.cli.search import index_command, search
from cse.cli.settings import preset, settings_command
from cse.errors import CseError
from cse.settings.load import impossible_rows
from cse.stages.common import CHECKPOINT, METRICS, PLOTS, PREPARED, run_safely

_BROUGHT = "cse.commands"  # entry points
# the commands by what one wants to do; any other stands under the last
_TASKS = {
    "Your own text, by tonight": ("adapt",),
    "Step by step": ("prepare", "train", "post", "evaluate", "export"),
    "Use a model": ("encode", "serve", "serve-key", "bank", "index", "search"),
    "Better settings": ("settings", "preset", "tune"),
    "Which is better": ("compare", "report"),
    "Versions and other tools": ("models", "flow", "import", "push", "pull"),
}
_EPILOG = """\b
With your own text:
  cse adapt --labels intents.csv   a better model, and whether it helped
  cse adapt manual/                of documents

\b
Step by step, with the sample and the built-in MiniLM backbone:
  cse prepare                      text            -> data/prepared
  cse train                        prompts         -> data/checkpoint
  cse evaluate                     scores          -> data/metrics
  cse export                       ONNX            -> data/bundle
  echo "A cat sleeps." | cse encode data/bundle --out vectors.npy

\b
`dvc repro` runs the first four and skips whatever has not changed.
Settings are in params.yaml (`cse settings` lists all); published systems are presets:
  cse preset list
  cse preset use promcse-eh-bert-base

CSE_DEBUG=1 in the environment shows the traceback of an error.
"""


class _Group(click.Group):
    """A group whose help is sorted by task, plus the commands that other packages register (``cse.commands``)."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands of each task."""
        there = self.list_commands(ctx)
        others = [name for name in there if not any(name in names for names in _TASKS.values())]
        width = formatter.width - 6 - max(map(len, there))
        for task, names in _TASKS.items():
            names = (*names, *(others if task == [*_TASKS][-1] else ()))
            commands = [(name, self.get_command(ctx, name)) for name in names if name in there]
            shown = [(name, command.get_short_help_str(width)) for name, command in commands if command]
            with formatter.section(task):
                formatter.write_dl(shown, col_max=max(map(len, there)))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *sorted(entry_points(group=_BROUGHT).names)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for command in entry_points(group=_BROUGHT, name=cmd_name):
            brought: click.Command = command.load()
            return brought
        return super().get_command(ctx, cmd_name)


@click.group(cls=_Group, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="cse")
def cli() -> None:
    """Contrastive sentence embeddings from soft prompts on a frozen language model."""


@cli.command(
    epilog="\b\nExamples:\n  cse prepare -s data.source=files -s data.train_path=my.csv -s data.view=pairs\n"
    "  cse prepare -s data.view=sentences -s mine.neighbours=5    pairs from plain sentences"
)
@settings_options
@click.option("--out", type=PATH, default=PREPARED, show_default=True, help="Output folder.")
def prepare(params: Path, overrides: Sequence[str], out: Path) -> None:
    """Read and clean the text and write it as Arrow data sets.

    data.view says what the source holds: sentences, pairs, triplets, labelled (NLI pairs), documents (tables or files;
    data.pairs says which rows come out) or categories (texts with any label). Reports what was dropped.

    With mine.neighbours, plain sentences become pairs, found with the bare backbone.
    """
    from cse.stages.prepare import prepare_stage

    settings = settings_from(params, overrides, any_view=True)
    prepare_stage(settings, prepared=out)
    for problem in islice(impossible_rows(settings), 1):
        click.echo(f"note        `cse train` will refuse these rows with the current settings: {problem}")


@cli.command(epilog="\b\nExample:\n  cse train -s train.learning_rate=3e-2 -s prompt.length=16")
@settings_options
@data_option
@click.option("--out", type=PATH, default=CHECKPOINT, show_default=True, help="Output folder.")
def train(params: Path, overrides: Sequence[str], data: Path, out: Path) -> None:
    """Train prompts (or the whole model) and keep the best checkpoint.

    To resume a killed run from its last saved state, run the same command again.
    """
    settings = settings_from(params, overrides, prepared=data)
    check_given(prepared=data)
    from cse.stages.train import train_stage

    usual = out == CHECKPOINT
    train_stage(
        settings,
        prepared=data,
        checkpoint=out,
        metrics=METRICS / "train.json" if usual else Path(f"{out}.json"),
        plots=PLOTS / "train" if usual else Path(f"{out}.plots"),
    )


@cli.command(epilog="\b\nExample:\n  cse post data/checkpoint --kind whitening --out data/whitened")
@click.argument("model")
@settings_options
@click.option(
    "--kind",
    type=click.Choice(["whitening", "discriminant", "linear", "flow", "query_map"]),
    help="Post-processing to add; default: post.kind of params.yaml.",
)
@data_option
@click.option("--out", type=PATH, required=True, help="Folder for the new checkpoint.")
def post(model: str, params: Path, overrides: Sequence[str], kind: str | None, data: Path, out: Path) -> None:
    """Fit whitening, a discriminant, a linear head, flow or a query map and add it to MODEL.

    It is fitted on the training sentences, a discriminant and a linear head also on their labels (data.view:
    categories), a query map on pairs of a query and its document (data.pairs: stand_ins). MODEL is a checkpoint, or a
    bare backbone given by folder, hub id or file of word vectors. Set further options in group post of params.yaml.
    """
    own = [] if kind is None else [f"post.kind={kind}", *(["prompt.side=query"] if kind == "query_map" else [])]
    settings = settings_from(params, [*overrides, *own], optional=True)
    if settings.post.kind == "none":
        raise CseError("post.kind: none adds nothing; give --kind")
    check_given(model, data)
    from cse.training.fit_post import put_behind

    put_behind(model, settings.post, prepared=data, out=out)


for command in (
    settings_command, preset, evaluate, report, adapt, compare, export, encode, bank, index_command, search,
    import_command, push, pull,
):  # fmt: skip
    cli.add_command(command)


def main() -> None:
    """Run the command line; print errors as one line and exit with code 2."""
    if sys.getfilesystemencoding() == "ascii" and os.environ.get("PYTHONUTF8") != "1":  # text beyond it would be none
        again = [sys.executable, "-X", "utf8", *sys.orig_argv[1:]]
        os.execve(sys.executable, again, {**os.environ, "PYTHONUTF8": "1"})
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # what a terminal's encoding lacks

    def work() -> None:
        try:
            with naming_extra():
                cli.main(prog_name="cse", standalone_mode=False)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
        except click.exceptions.Abort as stop:
            if isinstance(stop.__cause__, EOFError):  # click takes a file that ends too early for Ctrl-D
                raise stop.__cause__ from None
            raise KeyboardInterrupt from None
        except click.ClickException as error:
            ctx = error.ctx if isinstance(error, click.UsageError) else None
            hint = "" if ctx is None else f" (see {ctx.command_path} --help)"
            raise CseError(f"{error.format_message()}{hint}") from None

    sys.exit(run_safely(work))
