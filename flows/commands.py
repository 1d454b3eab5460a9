"""``cse flow``: run the flows in this process; on workers, ``prefect deployment run`` does."""

from __future__ import annotations

from collections.abc import Sequence

import click

from cse.cli.options import parse_overrides, set_option


@click.group("flow")
def flow_command() -> None:
    """Run the pipeline as a Prefect flow, here.

    On workers: `prefect --no-prompt deploy --all`, then `prefect deployment run train-cse/local --watch`. Prefect wants
    FLOW/NAME and refuses a bare `train-cse`.
    """


@flow_command.command(
    "train",
    epilog="\b\nExamples:\n  cse flow train\n  cse flow train --preset promcse-eh-minilm -s train.epochs=3 --push",
)
@click.option("--preset", metavar="NAME", help="Published system for this run (see `cse preset list`).")
@click.option("--keep-data", is_flag=True, help="Train the preset on the data in params.yaml instead of the paper's.")
@set_option
@click.option("--pull", is_flag=True, help="Pull data and results from the DVC remote first.")
@click.option("--push", is_flag=True, help="Push the results to the DVC remote.")
@click.option(
    "--promote", type=click.Choice(["no", "register", "promote"]), default="no", show_default=True,
    help="Register the result as a version; promote: also put it in production if it passes the gate.",
)  # fmt: skip
def train(overrides: Sequence[str], **same: str | bool | None) -> None:
    """Run the flow train-cse here.

    It is recorded on the configured Prefect server, or on a temporary one.

    With changed settings, this folder stays untouched and the result is a DVC experiment (`dvc exp show`, `dvc exp
    apply`).
    """
    from flows.server import run_here
    from flows.train_cse import train_cse

    run_here(train_cse, overrides=parse_overrides(overrides), **same)
