"""A sweep over prepared data in its own process, without DVC: ``python -c SCRIPT OPTION...``."""

import click

from cse.cli.options import data_option, settings_from, settings_options
from cse.stages.common import SCRATCH
from flows.tune import sweep_and_confirm, tune

SCRIPT = """
import sys
from cse.stages.common import run_safely
from tests.tune.sweep import main
sys.exit(run_safely(lambda: main.main(standalone_mode=False)))
"""


@click.command()
@settings_options
@data_option
def main(params, overrides, data, **trials):
    sweep_and_confirm(settings_from(params, overrides), data, scratch=SCRATCH, **trials)


main.params += [option for option in tune.params if option.name in ("names", "seeds", "confirm", "against")]
