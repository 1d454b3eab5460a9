"""``cse settings`` lists every key with its default, what it does, and what the user's file says instead."""

from click import unstyle

from cse.settings.load import walk_keys

KEYS = [key for key, _ in walk_keys()]


def test_every_key_is_listed_with_its_default_and_the_files_own_values(cse, empty):
    def listed(*words: str) -> list[str]:
        return [line for line in unstyle(cse("settings", *words).out).splitlines() if not line.startswith(" ")]

    assert [line.split(":")[0] for line in listed() if "[]" not in line.split(":")[0]] == KEYS
    assert [line.split(":")[0] for line in listed("whitening")] == ["post.kind", "post.dimension"]
    (empty / "params.yaml").write_text("augment: {repeat_words: 0.2}\nprompt: {length: 12}\n")
    assert listed("--changed") == ["augment.repeat_words: 0.0   params.yaml: 0.2"]
