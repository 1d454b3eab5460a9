"""Every code block of every page is run, or says in the page why not."""

import re

import pytest

from tests.pages.blocks import PAGES, ROOT, blocks_of, check_collected
from tests.pages.running import pages

NEEDS = (
    "network|downloads|GPU|bucket|machines|cluster|account|server|hour|minutes|trainings|captions|data|prints|answers|"
    "extract|clone"
)


@pytest.fixture(params=PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def page(request):
    return request.param


@pytest.fixture
def blocks(page):
    return list(blocks_of(page.read_text("utf-8")))


def test_each_block_is_seen_and_those_to_run_are_collected(page, blocks):
    text = page.read_text("utf-8")
    fences = len(re.findall(r"^(?:```|~~~)", text, re.M)) / 2
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    joined = re.sub(r"(?m)^(    .*)\n\n(?=    )", r"\1\n", outside)
    assert fences + len(re.findall(r"(?:\A|\n\n)(?=    \S)(?<!\n    )", joined)) == len(blocks)
    assert [example.parsed.line for example in pages.parse(page).examples()] == [block.line for block in blocks]
    assert page.parent.name == "deploy" or any(not block.reason for block in blocks), "a page that nothing runs"


def test_a_block_that_is_run_has_something_to_run(blocks):
    for block in blocks:
        if block.reason or block.run_by:
            assert not (block.left_out or block.first), "marks of a block that is not run"
        else:
            assert block.commands()


def test_a_reason_names_what_it_needs(blocks):
    """Not run means: it needs what a test has not, or a test that is named does it."""
    for block in blocks:
        reasons = list(filter(None, [block.reason, *block.left_out.values()]))
        for reason in reasons:
            assert re.search(NEEDS, reason) or "tests/" in reason, reason
        for named in re.findall(r"tests/[\w/]+\.py", " ".join([*reasons, block.run_by or ""])):
            assert (ROOT / named).is_file(), named


def test_a_mark_that_nobody_knows_is_refused():
    for comment in ("not run", "notrun: it is long", "fresh clone: why"):
        with pytest.raises(ValueError, match="line 3"):
            list(blocks_of(f"<!-- {comment} -->\n\n    cse train\n"))
    (block,) = blocks_of("<!-- not run (cse tune): hours -->\n\n    cse train\n")
    with pytest.raises(ValueError, match="no line begins with cse tune"):
        block.commands()


def test_commands_of_a_block():
    marks = "<!-- first: mkdir a -->\n<!-- not run (make): hours -->\n\n"
    text = f"Text\n\n{marks}    make all\n    # a comment\n    a \\\n      b\n\n    c\n"
    (block,) = blocks_of(text)
    assert block.commands() == ["a b", "c"]
    assert (block.first, block.line, block.language) == (["mkdir a"], 6, "sh")


def test_a_block_that_pytest_does_not_collect_is_missed():
    """Each block is one of the slow tests; those that are not run are skipped with their reasons."""
    found = {page: len(list(blocks_of(page.read_text("utf-8")))) for page in PAGES}
    check_collected(found)
    with pytest.raises(pytest.UsageError, match=r"docs/tune\.md: \d+ of \d+ code blocks were collected"):
        check_collected(found | {ROOT / "docs/tune.md": found[ROOT / "docs/tune.md"] - 1})
