"""``params.yaml`` and the settings classes name the same keys; options cannot creep in."""

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from cse.settings import Settings, load_settings
from cse.settings.document import COMMON, params_text, yaml_value
from cse.settings.load import flatten

ROOT = Path(__file__).parents[2]


def parse(text):
    return YAML(typ="safe", pure=True).load(text)


def test_params_file_has_the_common_keys_with_their_defaults():
    path = ROOT / "params.yaml"
    assert load_settings(path) == Settings()
    assert path.read_text(encoding="utf-8") == params_text(), "run: python -m cse.settings.document"


def test_params_file_has_what_dvc_asks_it_for():
    """DVC refuses a key of ``params:`` or ``${...}`` that the file lacks; a group may be empty."""
    text = (ROOT / "dvc.yaml").read_text(encoding="utf-8")
    stages = [entry.get("do", entry) for entry in parse(text)["stages"].values()]
    named = {key for stage in stages for key in stage["params"] if "$" not in key}
    named |= set(re.findall(r"\$\{([a-z_]+[.][a-z_.]+)\}", text)) - {"item.data"}
    assert {"augment", "data.train_path", "bank.domains"} <= named
    for key in named:
        value = parse(params_text())
        for name in key.split("."):
            assert name in value, f"{key}: add it to COMMON in cse/settings/document.py"
            value = value[name]


TEXTS = st.sampled_from(["null", "on", "1e3", "a b", "", "#x", "b: c", "back\\slash"]) | st.text(
    st.characters(codec="utf-8", exclude_categories=["C"])
)
VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS


@given(VALUES | st.lists(VALUES, min_size=1))
def test_values_survive_yaml(value):
    read = parse(f"key: {yaml_value(value)}")["key"]
    assert read == value
    assert type(read) is type(value)


def test_rewriting_a_settings_file_keeps_its_values_and_adds_what_it_lacks(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("train: {epochs: 3}\naugment: {repeat_words: 0.2, mask_span: 0}\n", encoding="utf-8")
    before = load_settings(path)
    path.write_text(params_text(before), encoding="utf-8")
    assert load_settings(path) == before
    assert set(flatten(parse(path.read_text(encoding="utf-8")))) >= {*COMMON, "augment.repeat_words"}
    assert "mask_span" not in path.read_text(encoding="utf-8")  # its default
