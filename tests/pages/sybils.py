"""Pages for pytest: Sybil makes an item of each code block, and the blocks of a page share one state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sybil import Document, Example, Region, Sybil

from tests.pages.blocks import PAGES, Block, blocks_of
from tests.pages.running import Page


def parse(document: Document) -> Iterator[Region]:
    """Yield a region for each code block of a page."""
    for block in blocks_of(document.text):
        yield Region(block.start, block.end, parsed=block, evaluator=evaluate)


def evaluate(example: Example) -> None:
    """Run a block."""
    block: Block = example.parsed
    names = example.namespace
    if "page" not in names:
        folder = names["tmp_path_factory"].mktemp(Path(example.path).stem)
        names["page"] = Page(names["clone_for_pages"], folder)
    names["page"].run(block)


def close(names: dict[str, Any]) -> None:
    """Stop what the page started."""
    if "page" in names:
        names["page"].close()


class Pages(Sybil):
    """The pages of the project, and no other file."""

    def should_parse(self, path: Path) -> bool:
        """Whether a file is a page."""
        return path in PAGES


pages = Pages(parsers=[parse], fixtures=["clone_for_pages", "tmp_path_factory"], teardown=close)
