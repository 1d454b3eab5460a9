"""Cited equations and sections exist and contain what the project says they do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted([*ROOT.glob("cse/**/*.py"), *ROOT.glob("cse/**/*.yaml"), *ROOT.glob("docs/*.md"), ROOT / "params.yaml"])

# What each paper has there, and a word that must stand near where it is named.
CITED = {
    r"PromCSE(?:'s)? equation (\d+)": {"1": "hidden", "11": "inge", "12": "inge"},
    r"PromCSE \(Jiang et al. 2022, equations (\d+ to \d+)\)": {"9 to 11": "hinge"},
    r"PromCSE \(Jiang et al. 2022\) section (\d+\.\d+)|PromCSE section (\d+\.\d+)": {"3.1": "rompt"},
    r"DCPCSE section ([\d.]+)": {"2.2": "asked language", "3.3": "SCPCSE"},
    r"D2CSE (?:equations?) (\d+(?: and \d+)?)": {"2": "token", "2 and 3": "token"},
    r"D2CSE (section [\d.]+)": {},
}


@pytest.mark.parametrize("pattern", CITED)
def test_what_is_cited_is_what_stands_there(pattern):
    found = set()
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        for match in re.finditer(pattern, text):
            number = next(group for group in match.groups() if group)
            near = text[max(match.start() - 400, 0) : match.end() + 400]
            assert CITED[pattern].get(number, "?!") in near, f"{file.relative_to(ROOT)}: {match[0]}"
            found.add(number)
    assert found == set(CITED[pattern]), "a citation that is gone; take it out of the table"
