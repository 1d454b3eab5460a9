"""How many code blocks each page has; a run of the pages that misses one ends before it starts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

# blocks that are run in a clone, that a test of its own or another page runs, and that say why they are not run
COUNTS = {
    "README.md": (13, 0, 2),
    "deploy/README.md": (1, 0, 2),
    "docs/adapt.md": (3, 1, 6),
    "docs/backbones.md": (2, 0, 5),
    "docs/bank.md": (5, 0, 2),
    "docs/corpus.md": (7, 0, 4),
    "docs/evaluate.md": (5, 1, 3),
    "docs/export.md": (5, 0, 0),
    "docs/extend.md": (0, 10, 0),
    "docs/flows.md": (3, 1, 4),
    "docs/gpu.md": (0, 0, 1),
    "docs/interchange.md": (5, 0, 5),
    "docs/models.md": (2, 0, 2),
    "docs/pipeline.md": (2, 0, 0),
    "docs/queries.md": (2, 0, 1),
    "docs/report.md": (2, 0, 0),
    "docs/results.md": (0, 0, 2),
    "docs/serve.md": (2, 8, 1),
    "docs/speed.md": (0, 1, 1),
    "docs/systems.md": (1, 0, 0),
    "docs/tools.md": (0, 8, 0),
    "docs/train.md": (8, 0, 1),
    "docs/tune.md": (2, 0, 3),
    "docs/without-training.md": (2, 0, 1),
    "docs/your-own-data.md": (7, 0, 1),
}


def check_counts(found: Mapping[str, int]) -> None:
    """Refuse a run that has collected fewer or more blocks of a page than there are."""
    for page, number in found.items():
        if number != (wanted := sum(COUNTS[page])):
            raise pytest.UsageError(f"{page}: {number} of {wanted} code blocks were collected")
