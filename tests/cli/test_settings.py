"""``cse settings`` lists every key with its default, what it does, and what the user's file says instead."""

import pytest
from click import unstyle

from cse.settings.load import walk_keys

KEYS = [key for key, _ in walk_keys()]


@pytest.fixture
def listed(cse):
    def run(*words: str) -> list[str]:
        done = cse("settings", *words)
        assert (done.code, done.err) == (0, "")
        assert max(map(len, done.out.splitlines())) <= 120
        return [line for line in unstyle(done.out).splitlines() if not line.startswith(" ")]

    return run


def test_every_key_is_listed_with_its_default(listed, empty):
    lines = listed()
    assert [line.split(":")[0] for line in lines if "[]" not in line.split(":")[0]] == KEYS
    assert "train.learning_rate: 0.01" in lines
    assert "data.more[].name: required" in lines


def test_words_name_a_group_a_key_or_something_meant(listed, empty):
    assert [line.split(":")[0] for line in listed("augment")] == [key for key in KEYS if key.startswith("augment.")]
    assert [line.split(":")[0] for line in listed("whitening")] == ["post.kind", "post.dimension"]


def test_the_files_own_values_are_shown(listed, empty):
    (empty / "params.yaml").write_text("augment: {repeat_words: 0.2}\nprompt: {length: 12}\n")
    assert "augment.repeat_words: 0.0   params.yaml: 0.2" in listed("augment")
    assert listed("--changed") == ["augment.repeat_words: 0.0   params.yaml: 0.2"]
    assert listed("--changed", "prompt") == ["params.yaml: every setting named so has its default"]
