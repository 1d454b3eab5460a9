"""Every table of the papers as printed, with this project's rows below."""

from __future__ import annotations

import csv
import io
import json
from importlib.resources import files

import numpy as np
import pytest

from cse.report.papers import paper_tables
from cse.report.systems import find_records, group


@pytest.fixture(scope="module")
def systems(records):
    return group(find_records([records]))


@pytest.fixture(scope="module")
def tables(systems):
    return {table.key: table for table in paper_tables(systems)}


def test_every_published_figure_is_there_as_printed(tables):
    """Against the file of figures itself, not the rows that the tables were made from."""
    text = files("cse.settings").joinpath("published.csv").read_text("utf-8")
    wanted = {}
    for record in csv.DictReader(io.StringIO(text)):
        key = f"{record['paper'].lower()}-{record['table'].removeprefix('Table ')}"
        wanted.setdefault(key, []).append(float(json.loads(record["value"])))
    assert set(tables) == set(wanted)
    for key, values in wanted.items():
        table = tables[key]
        shown = [number(cell) for line in table.lines[: table.printed] for cell in line[table.words :] if cell != "-"]
        assert sorted(shown) == sorted(values), key


def number(cell: str) -> float:
    """The number in a cell, without its footnote."""
    return {"yes": 1.0, "no": 0.0}[cell] if cell in ("yes", "no") else float(cell.rstrip("⁰¹²³⁴⁵⁶⁷⁸⁹"))


def test_own_rows_say_backbone_data_and_seeds_and_are_means_with_deviations(tables, systems):
    table = tables["promcse-1"]
    lines = {line[1]: line for line in table.lines[table.printed :]}
    assert set(lines) == {"backbone", "longer", "prompts"}
    assert lines["prompts"][:4] == (
        "supervised", "prompts", "tiny-bert", "this project: rows.csv, 7,680 triplets, 3 seeds",
    )  # fmt: skip
    prompts = next(system for system in systems if system.name == "prompts")
    values = [record.scores["sts"]["STS13"]["all"] for record in prompts.records]
    assert lines["prompts"][table.head.index("STS13")] == f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"
    assert not any("±" in cell for cell in lines["backbone"])
