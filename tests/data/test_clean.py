"""Which rows are dropped, and what the report says about them."""

from cse.data.clean import CleaningReport, clean_rows, overlap_key
from cse.data.shape import Row
from cse.settings.data import DataSettings
from tests.parts import refusal


def clean(rows, held_out=(), **how):
    report = CleaningReport("nli.csv")
    numbered = (Row(n, r) for n, r in enumerate(rows, start=2))
    return list(clean_rows(numbered, report, DataSettings(**how), held_out)), report


def dropped(report):
    return {reason: (drop.count, drop.first) for reason, drop in report.dropped.items() if drop.count}


def test_every_reason_is_counted_with_its_first_place():
    rows = [
        ("  a cat  ", "a pet", "a dog"), (None, None, None), ("", "  ", None), ("a", None, "c"), ("a", "b", " "),
        ("word " * 10_000, "b", "c"), ("a cat", "a pet", "a dog"), ("A Test-sentence!", "b", "c"),
        ("the end", "b", "c"), ("...", "N/A", "null"), ("a", "n.a.", "c"), ("a", "b", "-"),
    ]  # fmt: skip
    kept, report = clean(rows, held_out=["a test sentence .", "..."])
    assert kept == [("a cat", "a pet", "a dog"), ("the end", "b", "c")]
    assert dropped(report) == {
        "blank": (3, "nli.csv:3"), "missing_sentence": (2, "nli.csv:5"), "missing_hard_negative": (2, "nli.csv:6"),
        "too_long": (1, "nli.csv:7"), "duplicate": (1, "nli.csv:8"), "evaluation_overlap": (1, "nli.csv:9"),
    }  # fmt: skip
    assert (report.read, report.kept, report.distinct_sentences) == (12, 2, 6)


def test_what_settings_let_stay_and_nul_characters_that_become_blanks():
    kept, report = clean([("one two three",), ("one two three four",)], max_words=3)
    assert (kept, dropped(report)) == ([("one two three",)], {"too_long": (1, "nli.csv:3")})
    assert len(clean([("a", "b"), ("a", "b"), ("a", "c")], drop=[])[0]) == 3
    kept, report = clean([("a\0b",), ("\0",)])
    assert (kept, report.nul_replaced, dropped(report)) == ([("a b",)], 1, {"blank": (1, "nli.csv:3")})


def test_max_rows_are_drawn_after_cleaning_from_everywhere():
    rows = [("",), *((f"row {n}",) for n in range(1000)), ("row 7",)]
    kept, report = clean(rows, max_rows=100, seed=1)
    numbers = [int(text.split()[1]) for (text,) in kept]
    assert numbers == sorted(set(numbers)), "in the order of the file, none twice"
    assert sum(n < 500 for n in numbers) in range(35, 66)
    assert (report.read, report.kept, report.not_drawn, report.distinct_sentences) == (1002, 100, 900, 100)
    assert clean(rows, max_rows=100, seed=1)[0] == kept
    assert clean(rows, max_rows=100, seed=2)[0] != kept
    assert set(kept) < set(clean(rows, max_rows=101, seed=1)[0]), "more rows include those of fewer"
    every, report = clean(rows, max_rows=1000)
    assert (every, report.not_drawn) == (clean(rows)[0], 0)


def test_overlap_ignores_case_and_punctuation_only():
    for one, other in (
        ("The woman's hat.", "the woman 's hat"), ("I don't know", "i do n't know !"),
        ("\u201cQuoted\u201d", "quoted"), ("Caf\u00e9", "cafe\u0301"),
    ):  # fmt: skip
        assert overlap_key(one) == overlap_key(other)
    for one, other in (("a cat", "a bat"), ("5 + 3", "5 3"), ("\u0915\u093f", "\u0915\u0940")):
        assert overlap_key(one) != overlap_key(other)


def test_nothing_left_says_how_many_why_and_what_to_do():
    said = refusal(clean, [("a", "b", None), ("c", "d", None), (None, None, None)])
    assert said.startswith("nli.csv: all 3 rows were dropped: 2 missing_hard_negative (first nli.csv:2), 1 blank (")
    assert said.endswith("; fill the third column or set data.view: pairs")
    assert "no rows" in refusal(clean, [])
