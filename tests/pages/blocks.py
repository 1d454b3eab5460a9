"""The code blocks of a page of Markdown, and the marks that stand in comments before them.

A mark is an HTML comment between a block and the text above it:

    <!-- not run: REASON -->                the whole block
    <!-- not run (COMMAND): REASON -->      the lines of it that begin with COMMAND
    <!-- first: COMMAND -->                 run before it, unseen by readers: files that the page takes for granted
    <!-- fresh clone -->                    run it in another copy of the finished clone than the blocks above
    <!-- continues -->                      Python that uses the names of the Python blocks above
    <!-- run by TEST -->                    a test of its own runs it and looks at what comes out
"""

import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "deploy/README.md", *sorted((ROOT / "docs").glob("*.md"))]
_COMMENT = re.compile(r"<!--\s*(.*?)\s*-->", re.S)
_MARK = re.compile(r"(not run|first|fresh clone|continues|run by)(?: \((.+)\))?(?::? (.+))?", re.S)


@dataclass
class Block:
    """A code block: lines are counted from 1, characters from 0, and ``end`` is behind the last; the rest are marks.

    An indented block is of the language ``sh``; ``left_out`` has reasons by what the lines begin with.
    """

    line: int
    start: int
    end: int
    language: str
    text: str
    reason: str | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    first: list[str] = field(default_factory=list)
    fresh: bool = False
    continues: bool = False
    run_by: str | None = None

    def mark(self, comment: str) -> None:
        """Note what a comment says."""
        found = _MARK.fullmatch(" ".join(comment.split()))
        if found is None:
            raise ValueError(f"line {self.line}: no such mark: {comment}")
        kind, what, text = found.groups()
        if (kind in ("not run", "first", "run by")) != (text is not None):
            raise ValueError(f"line {self.line}: {kind} {'has no' if text is None else 'takes no'} text")
        if kind == "first":
            self.first.append(text)
        elif kind == "run by":
            self.run_by = text
        elif kind != "not run":
            setattr(self, kind.split()[0], True)
        elif what is None:
            self.reason = text
        else:
            self.left_out[what] = text

    def commands(self) -> list[str]:
        """Return the commands to run: lines that continue joined, comments and what is left out dropped."""
        found, used = [], set()
        for command in re.split(r"\n(?!\s)", re.sub(r"\\\n\s*", "", self.text.rstrip())):
            skipped = [beginning for beginning in self.left_out if command.startswith(beginning)]
            used.update(skipped)
            if not skipped and command.strip() and not command.startswith("#"):
                found.append(command.strip())
        if unused := self.left_out.keys() - used:
            raise ValueError(f"line {self.line}: no line begins with {', '.join(unused)}")
        return found


def blocks_of(text: str) -> Iterator[Block]:
    """Yield the code blocks of a page in order."""
    starts = [0, *(found.end() for found in re.finditer("\n", text))]
    comments: list[str] = []
    for token in MarkdownIt().parse(text):
        if token.type in ("fence", "code_block"):
            assert token.map
            first, last = token.map
            language = "sh" if token.type == "code_block" else token.info
            block = Block(first + 1, starts[first], starts[min(last, len(starts) - 1)], language, token.content)
            for comment in comments:
                block.mark(comment)
            yield block
        comments = [*comments, *_COMMENT.findall(token.content)] if token.type == "html_block" else []


def printed(code: str, folder: Path) -> str:
    """Run a block of Python in a folder, in this process, and return what it prints: libraries are imported once."""
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(code, "block", "exec", dont_inherit=True), {"__name__": "__main__"})
    return said.getvalue()


def run_by(page: str, test: str) -> list[Block]:
    """Return the blocks of a page that name a test's file as the one that runs them."""
    text, name = (ROOT / page).read_text("utf-8"), Path(test).relative_to(ROOT).as_posix()
    return [block for block in blocks_of(text) if block.run_by == name]
