"""The command line; users learn the tool from ``cse --help``."""

from collections.abc import Callable

from cse.cli.missing import naming_extra, refusing
from cse.errors import CseError

main: Callable[[], None]
try:
    with naming_extra("the command line"):
        from cse.cli.main import main
except CseError as error:
    main = refusing(error)

__all__ = ["main"]
