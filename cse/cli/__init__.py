"""The command line; users learn the tool from ``cse --help``."""

from cse.cli.main import main

__all__ = ["main"]
