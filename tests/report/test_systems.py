"""Runs that differ only in their seed are one system, with rows below each table of the papers, as printed."""

import csv
import io
import json
from importlib.resources import files

import numpy as np
import pytest

from cse.report.papers import figure, paper_tables
from cse.report.systems import find_records, group, number_at
from tests.report.made_up import BARE, make_data, make_record, trained


@pytest.fixture(scope="module")
def systems(records):
    return group(find_records([records]))


@pytest.fixture(scope="module")
def tables(systems):
    return {table.key: table for table in paper_tables(systems)}


def test_seeds_of_one_setting_are_one_system_and_the_bare_backbone_comes_first(systems):
    assert [(system.name, [record.name for record in system.records]) for system in systems] == [
        ("backbone", ["backbone"]), ("longer", ["longer"]), ("prompts", ["prompts-42", "prompts-43", "prompts-44"]),
    ]  # fmt: skip
    assert (systems[0].runs, systems[2].runs, systems[2].data) == ("no seed", "3 seeds", "rows.csv, 7,680 triplets")


@pytest.fixture
def grouped(tmp_path):
    """The names of records of some models, by system."""

    def call(**models) -> list[list[str]]:
        data = make_data(("STS12",))  # where only the model tells systems apart
        records = [make_record(tmp_path, name, model, data=data, measures=("sts",)) for name, model in models.items()]
        return [[record.name for record in system.records] for system in group(records)]

    return call


def test_one_seed_twice_counts_once_and_records_without_settings_stand_alone(grouped):
    bundle = BARE | {"kind": "bundle"}
    assert grouped(a=trained(1), again=trained(1), b=bundle, c=bundle) == [["a"], ["b"], ["c"]]


def test_models_of_other_text_are_two_systems_even_where_file_name_rows_and_seed_agree(grouped):
    first, second = trained(1), trained(1)
    for model, content in ((first, "0a"), (second, "0b")):
        model["facts"]["data"] |= {"content": content}
    assert grouped(first=first, second=second) == [["first"], ["second"]], "none is dropped"


def test_runs_on_two_devices_are_one_system_and_another_precision_is_another(grouped):
    one, other, rounded = trained(1), trained(2), trained(3)
    for model, precision, device in ((one, "fp32", "cpu"), (other, "fp32", "NVIDIA H200"), (rounded, "bf16", "cpu")):
        model["facts"] |= {"precision": precision, "environment": {"torch": "2.13", "device": device}}
    assert grouped(one=one, other=other, rounded=rounded) == [["one", "other"], ["rounded"]]


def test_figures_of_the_columns(records, tmp_path):
    record = find_records([records / "backbone"])[0]
    scores, first = record.scores, record.table("retrieval.csv")[0]
    for measure, column, expected in (
        ("spearman_x100", "STS14", scores["sts"]["STS14"]["all"]),
        ("spearman_x100", "Avg. STS (7 tasks)", scores["Avg."]),
        ("recall@3", "STS-B test retrieval", scores["retrieval"]["recall@3"]),
        ("alignment", "STS-B test", scores["space_test"]["alignment"]),
        ("uniformity", "STS-B (split not stated)", scores["space"]["uniformity"]),
        ('cosine_similarity to query "you can do it, too."', '"yes, you can do it." (correct)',
         scores["retrieval"]["near_identical"]["yes , you can do it ."]),
        ("hyperparameter", "learning_rate", None),
        ("rank_of_correct_answer", f'STS-B test, query "{first["query"]}" -> "{first["partner"]}"', int(first["rank"])),
        ("rank_of_correct_answer", 'STS-B test, query "who" -> "what"', None),
    ):  # fmt: skip
        assert figure(measure, column)(record) == expected, column
    assert figure("hyperparameter", "prompt_length")(find_records([records / "runs/prompts-42"])[0]) == 12
    part = make_record(tmp_path, "part", BARE, data=make_data(("STS12", "STS13")))
    assert figure("spearman_x100", "Avg.")(part) is number_at("Avg.")(part) is None, "of a part is not the average"


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
    assert lines["prompts"][2:4] == ("tiny-bert", "this project: rows.csv, 7,680 triplets, 3 seeds")
    (prompts,) = (system for system in systems if system.name == "prompts")
    values = [record.scores["sts"]["STS13"]["all"] for record in prompts.records]
    assert lines["prompts"][table.head.index("STS13")] == f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"
    assert not any("±" in cell for cell in lines["backbone"])
