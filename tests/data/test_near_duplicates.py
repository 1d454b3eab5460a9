"""Near-duplicates, against the Jaccard index by definition."""

from __future__ import annotations

import pytest

from cse.data.clean import NearDuplicates, bands
from cse.data.prepare import prepare
from cse.data.store import PreparedData
from cse.settings.data import DataSettings

ROWS = [
    "The quick brown fox jumps over the lazy dog near the river.",
    "The quick brown fox jumps over the lazy dog near the river!",  # one character
    "the QUICK brown  fox jumps over the lazy dog near the river.",  # case and spaces alone
    "The quick brown cat jumps over the lazy dog near the river.",  # one word
    "Nothing like it.",
    "A man was playing a guitar on the stage.",  # held out but for a word
    "cat",  # shorter than its 5-grams
    "CAT",
]
HELD_OUT = "A man is playing a guitar on the stage."


def by_definition(texts: list[str], held_out: list[str], threshold: float) -> list[str | None]:
    """Compare each text with every kept one and every held-out sentence, with sets of 5-grams."""

    def grams(text: str) -> set[str]:
        text = " ".join(text.lower().split())
        return {text[i : i + 5] for i in range(len(text) - 4)} or {text}

    kept, found = [], []
    for text in texts:
        near = [len(grams(text) & grams(other)) / len(grams(text) | grams(other)) for other in (*held_out, *kept)]
        if max(near[: len(held_out)], default=0) >= threshold:
            found.append("near_evaluation")
        elif max(near[len(held_out) :], default=0) >= threshold:
            found.append("near_duplicate")
        else:
            kept.append(text)
            found.append(None)
    return found


@pytest.mark.parametrize(("threshold", "dropped"), [(0.6, [1, 2, 3, 5, 7]), (0.9, [1, 2, 7]), (1.0, [2, 7])])
def test_rows_are_dropped_as_the_definition_says(threshold, dropped):
    near = NearDuplicates(threshold, [HELD_OUT])
    found = [near.fault([text]) for text in ROWS]
    assert found == by_definition(ROWS, [HELD_OUT], threshold)
    assert [number for number, reason in enumerate(found) if reason] == dropped


@pytest.mark.parametrize("threshold", [0.05, 0.3, 0.5, 0.8, 0.95])
def test_the_bands_find_what_is_at_the_threshold(threshold):
    count, size = bands(threshold)
    assert count * size <= 128
    assert 1 - (1 - threshold**size) ** count >= 0.99


def test_a_row_counts_as_a_whole_and_held_out_text_by_text(tmp_path):
    for part, text in {
        "train/rows.csv": "sent0,sent1\n"
        "A man eats a large pizza.,Someone eats.\n"
        "A man eats a large pizza!,Someone eats!\n"  # near the first
        "A man eats a large pizza.,The weather is nice today.\n"
        "A dog sleeps on the warm floor.,A man was playing a guitar on the stage.\n",  # near the dev pair
        "dev/dev.csv": f"sentence1,sentence2,score\n{HELD_OUT},Someone plays.,4\nx,y,0\n",
    }.items():
        (tmp_path / part).parent.mkdir()
        (tmp_path / part).write_text(text, encoding="utf-8")
    (tmp_path / "evaluation").mkdir()
    paths = {f"{part}_path": str(tmp_path / part) for part in ("train", "dev", "evaluation")}

    def kept(**more) -> tuple[list[str], dict]:
        report = prepare(DataSettings(source="files", view="pairs", **paths, **more), tmp_path / "out", progress=False)
        counted = {reason: entry for reason, entry in report["train"]["dropped"].items() if entry["count"]}
        return list(PreparedData(tmp_path / "out").train["sent1"].to_pylist()), counted

    assert len(kept()[0]) == 4
    assert kept()[1] == {}
    texts, counted = kept(near_duplicates=0.7)
    assert texts == ["Someone eats.", "The weather is nice today."]
    assert counted == {
        "near_evaluation": {"count": 1, "first": "rows.csv:5"},
        "near_duplicate": {"count": 1, "first": "rows.csv:3"},
    }
    assert len(kept(near_duplicates=0.7, drop=["duplicates"])[0]) == 3
