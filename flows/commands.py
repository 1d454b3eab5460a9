"""``cse flow``: run the flows in this process; on workers, ``prefect deployment run`` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from cse.cli.options import parse_overrides, set_option
from cse.errors import CseError


@click.group("flow")
def flow_command() -> None:
    """Run the pipeline as a Prefect flow, here.

    On workers: `prefect --no-prompt deploy --all`, then `prefect deployment run train-cse/local --watch`. Prefect wants
    FLOW/NAME and refuses a bare `train-cse`.
    """


@flow_command.command(
    "train",
    epilog="\b\nExamples:\n  cse flow train\n  cse flow train --preset promcse-eh-minilm -s train.epochs=3 --push\n"
    "  cse flow train --sweep train.learning_rate=[0.01,0.03] --sweep prompt.length=8..16",
)
@click.option("--preset", metavar="NAME", help="Published system for this run (see `cse preset list`).")
@click.option("--keep-data", is_flag=True, help="Train the preset on the data in params.yaml instead of the paper's.")
@set_option
@click.option(
    "--sweep", multiple=True, metavar="SPACE|KEY=VALUES",
    help="Search first, continue with the best on dev: a space (`cse tune --help`), KEY=[V,...] or KEY=LOW..HIGH.",
)  # fmt: skip
@click.option("--pull", is_flag=True, help="Pull data and results from the DVC remote first.")
@click.option("--push", is_flag=True, help="Push the results to the DVC remote.")
@click.option(
    "--promote", type=click.Choice(["no", "register", "promote"]), default="no", show_default=True,
    help="Register the result as a version; promote: also put it in production if it passes the gate.",
)  # fmt: skip
def train(overrides: Sequence[str], sweep: Sequence[str], **same: str | bool | None) -> None:
    """Run the flow train-cse here.

    It is recorded on the configured Prefect server, or on a temporary one.

    With changed settings, this folder stays untouched and the result is a DVC experiment (`dvc exp show`, `dvc exp
    apply`).
    """
    from flows.server import run_here
    from flows.train_cse import train_cse

    run_here(train_cse, overrides=parse_overrides(overrides), sweep=_space(sweep), **same)


@flow_command.command(
    "train-bank", epilog="\b\nExamples:\n  cse flow train-bank\n  cse flow train-bank tickets invoices --no-promote"
)
@click.argument("domains", nargs=-1, metavar="[DOMAIN]...")
@click.option("--pull", is_flag=True, help="Pull data and results from the DVC remote first.")
@click.option("--push", is_flag=True, help="Push the results to the DVC remote, and the versions to git's origin.")
@click.option("--promote/--no-promote", default=True, show_default=True, help="Put what passes the gate into the bank.")
def train_bank_command(domains: Sequence[str], **same: bool) -> None:
    """Run the flow train-bank here: train the domains that changed and bring the bank up to date.

    Without DOMAIN, looks at all of `bank.domains`.
    """
    from flows.server import run_here
    from flows.train_bank import train_bank

    run_here(train_bank, domains=list(domains) or None, **same)


def _space(given: Sequence[str]) -> str | dict[str, Any] | None:
    """Return the parameter of the flow: the name of a ready space, or values by key."""
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    space = parse_overrides(given)
    for key, values in space.items():
        if not isinstance(values, list | str):
            raise CseError(f"--sweep {key}: give a list of values, for instance {key}=[{values}], or a range")
    return space or None
