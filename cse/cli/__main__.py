"""``python -m cse.cli``: the command line, for callers that know their Python and not its folder of scripts."""

from cse.cli import main

main()
