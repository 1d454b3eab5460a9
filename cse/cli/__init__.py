"""The command line: ``cse --help`` is where people learn the tool."""

from cse.cli.main import main

__all__ = ["main"]
