"""How many code blocks each page has; a run of the pages that misses one ends before it starts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

# blocks that are run in a clone, that a test of its own runs, and that say why they are not run
COUNTS = {
    "README.md": (6, 0, 2),
    "docs/adapt.md": (6, 1, 8),
    "docs/bank.md": (5, 0, 2),
    "docs/deploy.md": (6, 0, 2),
    "docs/evaluate.md": (8, 0, 3),
    "docs/extend.md": (0, 10, 0),
    "docs/interchange.md": (5, 8, 5),
    "docs/pipeline.md": (8, 0, 6),
    "docs/results.md": (1, 0, 5),
    "docs/search.md": (7, 0, 4),
    "docs/serve.md": (2, 8, 1),
    "docs/train.md": (12, 0, 5),
    "docs/tune.md": (2, 0, 3),
    "docs/your-own-data.md": (8, 0, 1),
}


def check_counts(found: Mapping[str, int]) -> None:
    """Refuse a run that has collected fewer or more blocks of a page than there are."""
    for page, number in found.items():
        if number != (wanted := sum(COUNTS[page])):
            raise pytest.UsageError(f"{page}: {number} of {wanted} code blocks were collected")
