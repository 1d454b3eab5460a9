"""Where the stages keep their things, and how a stage becomes a process with one-line errors."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import click

from cse.errors import CseError, Interrupted, OfflineError, Terminated, error_line
from cse.process import handling
from cse.settings import Settings, load_settings

PREPARED = Path("data/prepared")
CORRUPTED = Path("data/corrupted")
CHECKPOINT = Path("data/checkpoint")
METRICS = Path("data/metrics")
PLOTS = Path("data/plots")
RECORDS = Path("data/evaluation")
ABLATIONS = Path("data/ablations")
REPORT = Path("data/report")
BUNDLE = Path("data/bundle")
# what a killed run goes on from; a run in a throwaway copy of the repository is told to use its owner's
SCRATCH_VARIABLE = "CSE_SCRATCH"
SCRATCH = Path(os.environ.get(SCRATCH_VARIABLE, ".cse")).expanduser()

CORRUPTION_FILE = "corruption.json"  # in the folder of corrupted rows: how they were made

# whole folders, so that the list has no second home in dvc.yaml; a killed run is cheap to begin again
_TRAINS = ("data", "evaluation", "model", "objectives", "runtime", "scale", "stages", "training")

DEBUG_VARIABLE = "CSE_DEBUG"
MISTAKE, TRY_LATER = 2, 75  # exit codes; the second is EX_TEMPFAIL of sysexits.h

TRAINED, BACKBONE = "trained", "backbone"  # what stage ``evaluate`` calls the two models that it compares


def shortfall(scores: Mapping[str, Mapping[str, float]]) -> str:
    """Say that the trained model scores below its bare backbone; an empty string where it does not, or is not known.

    Args:
        scores: Spearman * 100 by model and task, as in the plot ``sts.csv`` of stage ``evaluate``.
    """
    trained, backbone = scores.get(TRAINED, {}), scores.get(BACKBONE, {})
    tasks = sorted(trained.keys() & backbone.keys())
    if not tasks:
        return ""
    mine, bare = (sum(model[task] for task in tasks) / len(tasks) for model in (trained, backbone))
    over = tasks[0] if len(tasks) == 1 else f"mean of {len(tasks)} tasks"
    return f"below its bare backbone: {mine:.2f} against {bare:.2f} ({over})" if mine < bare else ""


def training_code() -> list[Path]:
    """Return the files that decide an update, or which weights are kept: their change makes a saved state stale.

    A sweep goes by them too. A test compares the list with what stage ``train`` imports.
    """
    root = Path(__file__).parents[1]
    return [path for folder in _TRAINS for path in sorted((root / folder).rglob("*.py"))]


def run_safely(work: Callable[[], object]) -> int:
    """Run ``work`` and return an exit code: 0, 2 for a mistake of the user's (one line), 128 + n for a signal.

    75 (one line too) where the same command may succeed later: a hub that could not be reached.

    SIGTERM ends ``work`` like an error, so that drafts are removed; a training and a corpus save their state instead.
    With ``CSE_DEBUG=1`` in the environment the trace is shown too.
    """
    try:
        with _terminable():
            work()
    except Terminated:
        click.echo("SIGTERM: stopped; what was finished before is untouched", err=True)
        return 128 + signal.SIGTERM
    except Interrupted as stop:
        click.echo(str(stop), err=True)
        return 128 + stop.number
    except KeyboardInterrupt:
        click.echo("stopped", err=True)
        return 130
    except (CseError, OSError) as error:
        if os.environ.get(DEBUG_VARIABLE):
            traceback.print_exc()
        click.echo(f"error: {error_line(error)}", err=True)
        return TRY_LATER if isinstance(error, OfflineError) else MISTAKE
    return 0


def _terminable() -> AbstractContextManager[None]:
    """Turn the first SIGTERM into ``Terminated``, where a process would die of it."""

    def stop(number: int) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second one would end the tidying up
        raise Terminated

    usual = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    return handling(stop, signal.SIGTERM) if usual else nullcontext()


def run_stage(stage: Callable[[Settings], object]) -> None:
    """Run a stage with the settings of ``params.yaml`` and leave with its exit code."""
    sys.exit(run_safely(lambda: stage(load_settings())))
