"""Paths of the stages' inputs and outputs, and running a stage as a process with one-line errors."""

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
CHECKPOINT = Path("data/checkpoint")
METRICS = Path("data/metrics")
PLOTS = Path("data/plots")
RECORDS = Path("data/evaluation")
REPORT = Path("data/report")
BUNDLE = Path("data/bundle")
BARE = Path("data/bare")  # of the bare backbone
BANK = Path("data/bank")
DOMAINS = Path("data/domains")
# state from which a killed run resumes; runs in a throwaway copy of the repository set the variable to share it
SCRATCH_VARIABLE = "CSE_SCRATCH"
SCRATCH = Path(os.environ.get(SCRATCH_VARIABLE, ".cse")).expanduser()

DEBUG_VARIABLE = "CSE_DEBUG"
MISTAKE, TRY_LATER = 2, 75  # exit codes; the second is EX_TEMPFAIL of sysexits.h

TRAINED, BACKBONE = "trained", "backbone"  # names of the two models that stage ``evaluate`` compares


def shortfall(scores: Mapping[str, Mapping[str, float]]) -> str:
    """Return a note if the trained model scores below its bare backbone, else (or if unknown) an empty string.

    Args:
        scores: Spearman * 100 by model and task, as in ``sts.csv`` of stage ``evaluate``.
    """
    trained, backbone = scores.get(TRAINED, {}), scores.get(BACKBONE, {})
    tasks = sorted(trained.keys() & backbone.keys())
    if not tasks:
        return ""
    # rounded like the table's average
    mine, bare = (sum(round(model[task], 2) for task in tasks) / len(tasks) for model in (trained, backbone))
    over = tasks[0] if len(tasks) == 1 else f"mean of {len(tasks)} tasks"
    return f"below its bare backbone: {mine:.2f} against {bare:.2f} ({over})" if mine < bare else ""


def run_safely(work: Callable[[], object]) -> int:
    """Run ``work`` and return an exit code: 0, 2 for a user error (one line), 128 + n for a signal.

    The code is 75 (also one line) if the same command may succeed later because a hub was unreachable.

    SIGTERM ends ``work`` like an error, so that drafts are removed; training and corpus runs save their state instead.
    ``CSE_DEBUG=1`` in the environment also prints the traceback.
    """
    try:
        with _terminable():
            work()
    except Terminated:
        click.echo("SIGTERM: stopped; finished results are untouched", err=True)
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
    """Raise ``Terminated`` on the first SIGTERM if the signal would otherwise kill the process."""

    def stop(number: int) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second one would interrupt the cleanup
        raise Terminated

    usual = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    return handling(stop, signal.SIGTERM) if usual else nullcontext()


def run_stage(stage: Callable[[Settings], object]) -> None:
    """Run a stage with the settings in ``params.yaml`` and exit with its code."""
    sys.exit(run_safely(lambda: stage(load_settings())))
