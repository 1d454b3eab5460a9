"""``cse flow``: run the flows from a terminal, here or through a Prefect server."""

from __future__ import annotations

import contextlib
import itertools
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import click

from cse.cli.options import parse_overrides, set_option
from cse.errors import CseError


@click.group("flow")
def flow_command() -> None:
    """Run the pipeline as a Prefect flow, here or on workers."""


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
@click.option("--clone", is_flag=True, help="Use a throwaway clone even if no setting changes.")
@click.option("--pull", is_flag=True, help="Pull data and results from the DVC remote first.")
@click.option("--push", is_flag=True, help="Push the results to the DVC remote.")
@click.option(
    "--promote", type=click.Choice(["no", "register", "promote"]), default="no", show_default=True,
    help="Register the result as a version; promote: also put it in production if it passes the gate.",
)  # fmt: skip
def train(overrides: Sequence[str], sweep: Sequence[str], clone: bool, **same: str | bool | None) -> None:
    """Run the flow train-cse here.

    It is recorded on the configured Prefect server, or on a temporary one.

    With changed settings, this folder stays untouched and the result is a DVC experiment (`dvc exp show`, `dvc exp
    apply`).
    """
    from flows.server import run_here
    from flows.train_cse import train_cse

    place = "clone" if clone else "auto"
    run_here(train_cse, overrides=parse_overrides(overrides), sweep=_space(sweep), workspace=place, **same)


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


@flow_command.command(
    context_settings={"ignore_unknown_options": True},
    epilog="\b\nExamples:\n  cse flow run train-cse --watch\n"
    "  cse flow run train-cse/gpu -p preset=promcse-eh-bert-base -p push=true\n"
    "  cse flow run index-cse -p texts=tickets.jsonl -p out=data/search",
)
@click.argument("deployment")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def run(deployment: str, options: Sequence[str]) -> None:
    """Start a deployment on the Prefect server.

    DEPLOYMENT is FLOW/NAME; FLOW alone means FLOW/local. Prints the full command.

    OPTIONS are passed to `prefect deployment run`: -p KEY=VALUE (JSON), --params, --watch, --job-variable.
    """
    if not deployment.strip("/") or deployment.count("/") > 1:
        raise CseError(f"{deployment}: not a deployment; write FLOW/NAME, for instance train-cse/local")
    flow_name, _, name = deployment.partition("/")
    if flow_name == "train-cse":
        _check_parameters(options)
    _prefect("deployment", "run", f"{flow_name}/{name or 'local'}", *options)


@flow_command.command()
def deploy() -> None:
    """Create the deployments of prefect.yaml on the server.

    Also creates the work pools. Prints the full command.
    """
    _prefect("--no-prompt", "deploy", "--all")


def _prefect(*arguments: str) -> None:
    from flows.server import check_server

    click.echo(f"$ {shlex.join(['prefect', *arguments])}", err=True)
    check_server()
    sys.exit(subprocess.call([sys.executable, "-m", "prefect", *arguments]))


def _space(given: Sequence[str]) -> str | dict[str, Any] | None:
    """Return the parameter of the flow: the name of a ready space, or values by key."""
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    space = parse_overrides(given)
    for key, values in space.items():
        if not isinstance(values, list | str):
            raise CseError(f"--sweep {key}: give a list of values, for instance {key}=[{values}], or a range")
    return space or None


def _check_parameters(options: Sequence[str]) -> None:
    """Refuse a wrong preset or setting here, where the nearest right one can be named; the server checks the rest."""
    from pydantic import TypeAdapter, ValidationError

    from flows.parameters import Overrides, Preset, Sweep

    kinds: dict[str, Any] = {"preset": Preset, "overrides": Overrides, "sweep": Sweep}
    for option, given in itertools.pairwise(options):
        name, _, value = given.partition("=")
        if option not in ("-p", "--param") or name not in kinds:
            continue
        with contextlib.suppress(ValueError):  # Prefect too takes for text what is no JSON
            value = json.loads(value)
        try:
            TypeAdapter(kinds[name] | None).validate_python(value)
        except ValidationError as error:
            raise CseError(f"{name}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
