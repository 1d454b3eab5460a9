"""Every code block of every page is run, or says in the page why not."""

import re
from collections import Counter

import pytest

from tests.pages.blocks import PAGES, ROOT, blocks_of
from tests.pages.counts import COUNTS, check_counts
from tests.pages.sybils import pages

NEEDS = (
    "network|downloads|GPU|bucket|machines|cluster|account|server|hour|minutes|trainings|captions|data|prints|answers|"
    "extract|clone"
)


def blocks(page):
    return list(blocks_of((ROOT / page).read_text("utf-8")))


def counted(page):
    """Blocks of a page by what happens to them; a block of which some lines are left out counts as run."""
    found = blocks(page)
    marked, elsewhere = sum(bool(b.reason) for b in found), sum(bool(b.run_by) for b in found)
    return len(found) - marked - elsewhere, elsewhere, marked


@pytest.mark.parametrize("page", [page.relative_to(ROOT).as_posix() for page in PAGES])
def test_each_block_is_run_or_says_why_not(page):
    text = (ROOT / page).read_text("utf-8")
    fences = len(re.findall(r"^(?:```|~~~)", text, re.M)) / 2
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    indented = len(
        re.findall(r"(?:\A|\n\n)(?=    \S)(?<!\n    )", re.sub(r"(?m)^(    .*)\n\n(?=    )", r"\1\n", outside))
    )
    run, elsewhere, marked = counted(page)
    assert fences + indented == run + elsewhere + marked, "blocks that the parser does not see"
    assert (run, elsewhere, marked) == COUNTS.get(page, (0, 0, 0)), "blocks came or went: count again"
    assert (run + elsewhere > 0) == (page in COUNTS)
    assert run == len([e for e in pages.parse(ROOT / page).examples() if not (e.parsed.reason or e.parsed.run_by)])


@pytest.mark.parametrize("page", list(COUNTS))
def test_a_block_that_is_run_has_something_to_run(page):
    for block in blocks(page):
        if block.reason or block.run_by:
            assert not (block.left_out or block.first), "marks of a block that is not run"
        else:
            assert block.commands()


@pytest.mark.parametrize("page", list(COUNTS))
def test_a_reason_names_what_it_needs(page):
    """Not run means: it needs what a test has not, or a test that is named does it."""
    for block in blocks(page):
        for reason in filter(None, [block.reason, *block.left_out.values()]):
            assert re.search(NEEDS, reason) or "tests/" in reason, reason
        for named in re.findall(
            r"tests/[\w/]+\.py", " ".join([block.reason or "", block.run_by or "", *block.left_out.values()])
        ):
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
    found = Counter({page: sum(counts) for page, counts in COUNTS.items()})
    check_counts(found)
    with pytest.raises(pytest.UsageError, match=r"docs/tune\.md: 4 of 5 code blocks were collected"):
        check_counts(found - Counter(["docs/tune.md"]))
