"""``cse adapt``: a better embedding for a user's own text, and proof."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from cse.cli.options import parse_overrides, settings_options
from cse.errors import CseError
from cse.model.declared import is_gguf, is_word_file
from cse.settings.load import check_settings, set_key

DEFAULT = Path("data/adapt")
_EXAMPLES = """\b
Examples:
  cse adapt manual/                                      a folder of Markdown, HTML or text files
  cse adapt corpus.jsonl --task my-search                documents, measured on a search collection (BEIR)
  cse adapt corpus.jsonl --task my-search --dev-queries my-search    half of its queries choose and are trained on
  cse adapt questions.txt --task labelled-questions      plain sentences, measured on labelled ones
  cse adapt --labels intents.csv --budget 30m            labelled texts: trained on one part, measured on the other
  cse adapt --labels intents.csv --backbone A B C        the one of these backbones that wins for its cost
  cse adapt --labels names.txt                           names of labels, one a line, and no text: in seconds
  cse adapt tickets.txt nli.csv --task my-search         NLI beside them, to keep general similarity
  cse adapt --labels intents.csv --shared-backbone       nothing that a bank cannot serve beside other domains

\b
If killed, run the same command again: it goes on where it was.
"""


def _seconds(context: click.Context, parameter: click.Parameter, value: str) -> float:
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)([smh])", value.strip())
    if found is None:
        raise click.BadParameter(f"{value[:30]!r} is no time; write 90s, 45m or 2h")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def _is_text(path: Path) -> bool:
    return path.exists() and not (is_gguf(path) or is_word_file(path) or (path / "config.json").is_file())


class _ManyBackbones(click.Command):
    """Takes ``--backbone A B C`` for ``--backbone A --backbone B --backbone C``; text behind it is a source."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given, inside = list[str](), False
        for word in args:
            first = given[-1:] == ["--backbone"]
            more = inside and not (first or word.startswith("-") or _is_text(Path(word)))
            given += ["--backbone"] if more else []
            inside = word == "--backbone" or first or more
            given.append(word)
        return super().parse_args(ctx, given)


@click.command(cls=_ManyBackbones, epilog=_EXAMPLES)
@click.argument("sources", nargs=-1, metavar="[SOURCE]...", type=click.Path(path_type=Path))
@click.option("--task", type=click.Path(path_type=Path), help="Your own task (docs/evaluate.md); never trained on.")
@click.option(
    "--dev-queries", type=click.Path(path_type=Path), metavar="FOLDER",
    help="Judged queries on your documents (BEIR's layout): they choose, and are trained on then. If --task names the "
    "same folder, one half of them; the other is measured.",
)  # fmt: skip
@click.option("--labels", type=click.Path(path_type=Path), help="Labelled texts to train on and to measure.")
@click.option(
    "--for", "use", type=click.Choice(["classify", "search"]),
    help="What the labelled texts are for, which chooses what ships: their label told right (the default) or texts of "
    "the same label found.",
)  # fmt: skip
@click.option(
    "--label-names", type=click.Path(path_type=Path), metavar="FILE",
    help="Table of texts that describe labels (text, label); of others the label itself, in words.",
)  # fmt: skip
@click.option("--text-column", help="Column of the labelled texts, if it is not called text or sentence.")
@click.option("--label-column", help="Column of their labels, if it is not called category, label or intent.")
@click.option(
    "--backbone", "backbones", multiple=True, metavar="MODEL...",
    help="Backbone in place of that of params.yaml; of several the one that wins for its cost, on held-out rows.",
)  # fmt: skip
@click.option("--budget", callback=_seconds, default="2h", show_default=True, help="Time to spend: 90s, 45m, 2h.")
@click.option(
    "--shared-backbone/--own-backbone", default=None,
    help="Leave the backbone's weights alone, so that a bank serves many domains from one copy, or train the whole "
    "model too. Default: own with --labels, else shared.",
)  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), default=DEFAULT, show_default=True, help="Folder to work in.")
@click.option(
    "--again", is_flag=True,
    help="If the folder has an adaptation to other text or settings, rename it (NAME-1, NAME-2, ...) and start over.",
)  # fmt: skip
@settings_options
def adapt(
    sources: Sequence[Path],
    task: Path | None,
    dev_queries: Path | None,
    labels: Path | None,
    use: str | None,
    label_names: Path | None,
    text_column: str | None,
    label_column: str | None,
    backbones: Sequence[str],
    budget: float,
    shared_backbone: bool | None,
    out: Path,
    again: bool,
    params: Path,
    overrides: Sequence[str],
) -> None:
    """Adapt the backbone to your own text, and say whether it helped.

    SOURCE is your text: documents, plain sentences, pairs or triplets, as a file or folder. Further ones, such as NLI
    triplets, are trained on beside it, a batch of each in turn.

    The command makes training rows, holds some out and climbs a ladder: the bare backbone, with labels a head on its
    vectors (a minute), prompts, prompts with a head, and the same of the whole model unless the backbone is to be
    shared. Of fewer than six texts a label, or names of labels alone, it makes a classifier in seconds. Of documents
    with judged queries it adapts the queries alone, against all documents, whose vectors and index stay as they are: a
    map of the query's vector (seconds). Held-out rows choose otherwise; what they chose is measured with an interval
    and a p value, exported and reported. The answer may be that nothing helped: the bundle is the bare backbone's then.

    It starts from the defaults: params.yaml gives the backbone, the machine, the encoding of files and the form of the
    bundle, -s all else.

    Ctrl-C ends the ladder: the best so far is measured and exported. The same command goes on from there.
    """
    from cse.adapt.look import Reading, base_settings, look, values_in

    if task is not None and labels is not None:
        raise CseError("--task and --labels: give one of them; a folder may hold several tasks (--task)")
    if labels is None and (use or label_names):
        raise CseError("--for and --label-names: for labelled texts, which --labels has to name")
    own, tree = parse_overrides(overrides), dict[str, Any]()
    if backbones and "backbone.name" in own:
        raise CseError("--backbone: -s backbone.name names one too; give one of them")
    if len(set(backbones)) < len(backbones):
        raise CseError(f"--backbone: {max(backbones, key=backbones.count)} is named twice")
    named = click.get_current_context().get_parameter_source("params") is ParameterSource.COMMANDLINE
    early = {"data.encoding": values_in(params, named=named).get("data.encoding", "utf-8")} | own
    for key in early.keys() & {"data.encoding", "data.score_range"}:  # files are read before all settings are known
        set_key(tree, key, early[key])
    data, columns = check_settings(tree, where="--set").data, None
    if "data.columns" in own:
        raise CseError(
            "data.columns: a source's columns have usual names here, and labels --text-column, --label-column"
        )
    if text_column or label_column:
        if labels is None:
            raise CseError("--text-column and --label-column: for --labels alone; rename the columns of SOURCE")
        columns = (text_column, label_column)
    lowest, highest = data.score_range
    reading = Reading(columns, data.encoding, (lowest, highest))
    found = look(sources, task=task, labels=labels, judged=dev_queries, reading=reading)
    (settings, left), *others = (
        base_settings(params, found.settings, own | name, named=named)
        for name in [{"backbone.name": name} for name in backbones] or [{}]
    )
    if left:
        click.echo(left, err=True)

    # mistakes so far are told in a second; torch alone takes longer
    from cse.adapt.run import adapt as run
    from cse.adapt.verdict import summary, write_page

    own_backbone = labels is not None if shared_backbone is None else not shared_backbone
    adapted = run(
        settings,
        found,
        out,
        budget=budget,
        own_backbone=own_backbone,
        judged=dev_queries is not None,
        use=None if labels is None else use or "classify",
        label_names=label_names,
        rivals=[one.backbone for one, _ in others],
        again=again,
    )
    text = adapted if isinstance(adapted, str) else summary(adapted)
    if not isinstance(adapted, str):
        write_page(adapted, text)
    (out / "summary.txt").write_text(text + "\n", encoding="utf-8")
    click.echo(text)
    if not isinstance(adapted, str) and adapted.stopped:
        raise SystemExit(130)  # as at any Ctrl-C: the work is not done
