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

SMALL = {"data": make_data(("STS12",)), "measures": ("sts",)}  # where only the model tells systems apart


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


def test_one_seed_twice_counts_once_and_records_without_settings_stand_alone(tmp_path):
    bundle = BARE | {"kind": "bundle"}
    models = {"a-1": trained(1), "a-1b": trained(1), "b-1": bundle, "b-2": bundle}
    first, again, *bundles = (make_record(tmp_path, name, model, **SMALL) for name, model in models.items())
    systems = group([first, again, *bundles])
    assert [len(system.records) for system in systems] == [1, 1, 1]
    assert [system.name for system in systems] == ["a", "b-1", "b-2"]


def test_models_of_other_text_are_two_systems_even_where_file_name_rows_and_seed_agree(tmp_path):
    models = [trained(1), trained(1)]
    for model, content in zip(models, ("0a", "0b"), strict=True):
        model["facts"]["data"] |= {"content": content}
    records = [make_record(tmp_path, f"text-{number}", model, **SMALL) for number, model in enumerate(models)]
    assert [system.records for system in group(records)] == [(records[0],), (records[1],)], "none is dropped"


def test_runs_on_two_devices_are_one_system_and_another_precision_is_another(tmp_path):
    records = []
    for seed, precision, device in ((1, "fp32", "cpu"), (2, "fp32", "NVIDIA H200"), (3, "bf16", "cpu")):
        model = trained(seed)
        model["facts"] |= {"precision": precision, "environment": {"torch": "2.13", "device": device}}
        records.append(make_record(tmp_path, f"run-{seed}", model, **SMALL))
    systems = group(records)
    assert [[record.name for record in system.records] for system in systems] == [["run-1", "run-2"], ["run-3"]]


def test_figures_of_the_columns(records):
    record = find_records([records / "backbone"])[0]
    scores = record.scores
    assert figure("spearman_x100", "STS14")(record) == scores["sts"]["STS14"]["all"]
    assert figure("spearman_x100", "Avg. STS (7 tasks)")(record) == scores["Avg."]
    assert figure("recall@3", "STS-B test retrieval")(record) == scores["retrieval"]["recall@3"]
    assert figure("alignment", "STS-B test")(record) == scores["space_test"]["alignment"]
    assert figure("uniformity", "STS-B (split not stated)")(record) == scores["space"]["uniformity"]
    cosine = figure('cosine_similarity to query "you can do it, too."', '"yes, you can do it." (correct)')(record)
    assert cosine == scores["retrieval"]["near_identical"]["yes , you can do it ."]
    assert figure("hyperparameter", "learning_rate")(record) is None
    run = find_records([records / "runs/prompts-42"])[0]
    assert figure("hyperparameter", "prompt_length")(run) == 12
    rows = record.table("retrieval.csv")
    column = f'STS-B test, query "{rows[0]["query"]}" -> "{rows[0]["partner"]}"'
    assert figure("rank_of_correct_answer", column)(record) == int(rows[0]["rank"])
    assert figure("rank_of_correct_answer", 'STS-B test, query "who" -> "what"')(record) is None


def test_an_average_over_a_part_is_not_the_average(tmp_path):
    record = make_record(tmp_path, "part", BARE, data=make_data(("STS12", "STS13")))
    assert "mean of 2 tasks" in record.scores
    assert figure("spearman_x100", "Avg.")(record) is None
    assert number_at("Avg.")(record) is None


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
