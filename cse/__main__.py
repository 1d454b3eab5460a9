"""``python -m cse``: the command line, for callers that know the interpreter but not its scripts folder."""

from cse.cli import main

main()
