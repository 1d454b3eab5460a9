"""Every row of every table of the three papers has a preset or a reason; hyperparameters agree with the figures."""

from hashlib import sha256
from importlib.resources import files

from cse.settings import check_settings
from cse.settings.load import set_key
from cse.settings.presets import (
    HYPERPARAMETER,
    coverage,
    load_preset,
    preset_names,
    records,
    rows,
    rows_of,
)

# of the figures as they were read twice from the papers
FIGURES = "e0ecff7093d3a6f3bd485d07dff9b0e4563f24099836dce0e9bcc92775d6c274"

KEYS = {
    "batch_size": "train.batch_size",
    "learning_rate": "train.learning_rate",
    "epochs": "train.epochs",
    "prompt_length": "prompt.length",
    "masking_ratio": "objective.replaced_tokens.mask_share",
    "lambda": "objective.replaced_tokens.weight",
    "cls_prompt": "prompt.cls",
    "multi_task_mlm": "objective.masked_lm.weight",
}


def identity(row):
    s = row.selector
    return s.paper, s.table, s.setting, s.model, s.backbone


def value_of(preset, key):
    tree = {}
    for name, value in load_preset(preset).settings.items():
        set_key(tree, name, value)
    value = check_settings(tree, where=preset)
    for part in key.split("."):
        value = getattr(value, part)
    return value


def test_figures_are_those_of_the_papers_and_each_stands_in_a_row():
    assert sha256(files("cse.settings").joinpath("published.csv").read_bytes()).hexdigest() == FIGURES
    assert sum(len(row.scores) for row in rows()) == len(records()) == 1007
    assert len(rows()) == 189


def test_every_row_of_the_papers_has_a_preset_or_a_reason():
    covered = coverage()
    assert len(covered) == len(rows())
    for row, presets, reason in covered:
        assert bool(presets) != bool(reason), f"{identity(row)}: {presets or 'no preset'}, {reason or 'no reason'}"
    assert sum(1 for _, presets, _ in covered if presets) == 182


def test_a_preset_names_each_row_once_and_on_its_own_backbone():
    sizes = {"BERT-base": "bert-base", "BERT-large": "bert-large", "GloVe": "glove"}
    for name in preset_names():
        found = rows_of(name)
        assert len({row.selector for row in found}) == len(found), name
        for row in found:
            size = sizes.get(row.selector.backbone, row.selector.backbone.lower())
            backbone = load_preset(name).settings["backbone.name"].lower()
            assert size in backbone, name
            assert ("roberta" in size) == ("roberta" in backbone), name


def test_hyperparameters_are_the_printed_ones():
    """PromCSE table 6: 4 presets of 3; DCPCSE tables 3 and 4: 8 presets of 5; D2CSE table 7: 5 of 7."""
    compared = set()
    for row, presets, _ in coverage():
        for score in (score for score in row.scores if score.metric == HYPERPARAMETER):
            for name in presets:
                ours = value_of(name, KEYS[score.dataset])
                printed = ours > 0 if score.dataset == "multi_task_mlm" else ours
                assert printed == score.value, f"{name} {score.dataset}"
                compared.add((name, score.dataset))
    assert len(compared) >= 4 * 3 + 8 * 5 + 5 * 7
