"""Every code block of every page is run, or says in the page why not."""

import re

import pytest

from tests.pages.blocks import PAGES, ROOT, blocks_of
from tests.pages.running import pages

NEEDS = (
    "network|downloads|GPU|bucket|machines|cluster|account|server|hour|minutes|trainings|captions|data|prints|answers|"
    "extract|clone"
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_each_block_is_run_or_names_what_it_needs_or_a_test_that_does(page):
    text = page.read_text("utf-8")
    blocks = list(blocks_of(text))
    fences = len(re.findall(r"^(?:```|~~~)", text, re.M)) / 2
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    joined = re.sub(r"(?m)^(    .*)\n\n(?=    )", r"\1\n", outside)
    assert fences + len(re.findall(r"(?:\A|\n\n)(?=    \S)(?<!\n    )", joined)) == len(blocks)
    assert [example.parsed.line for example in pages.parse(page).examples()] == [block.line for block in blocks]
    assert page.parent.name == "deploy" or any(not block.reason for block in blocks), "a page that nothing runs"
    for block in blocks:
        if block.reason or block.run_by:
            assert not (block.left_out or block.first), "marks of a block that is not run"
        else:
            assert block.commands()
        reasons = list(filter(None, [block.reason, *block.left_out.values()]))
        for reason in reasons:
            assert re.search(NEEDS, reason) or "tests/" in reason, reason
        for named in re.findall(r"tests/[\w/]+\.py", " ".join([*reasons, block.run_by or ""])):
            assert (ROOT / named).is_file(), named


def test_marks_and_the_commands_that_they_leave():
    marks = "<!-- first: mkdir a -->\n<!-- not run (make): hours -->\n\n"
    (block,) = blocks_of(f"Text\n\n{marks}    make all\n    # a comment\n    a \\\n      b\n\n    c\n")
    assert (block.commands(), block.first, block.line) == (["a b", "c"], ["mkdir a"], 6)
    for comment in ("not run", "notrun: it is long", "fresh clone: why"):
        with pytest.raises(ValueError, match="line 3"):
            list(blocks_of(f"<!-- {comment} -->\n\n    cse train\n"))
