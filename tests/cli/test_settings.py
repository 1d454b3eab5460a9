"""``cse preset``: which one reproduces which row; ``cse settings``: every key, and what a file says instead."""

import re

import huggingface_hub.constants
from click import unstyle

from cse.settings.load import walk_keys
from cse.settings.presets import preset_names


def test_list_names_every_preset_with_row_average_and_description(cse):
    shown = {line.split()[0]: line for line in cse("preset", "list").out.splitlines()[1:]}
    assert list(shown)[: len(preset_names())] == preset_names()
    assert re.search(r" PromCSE 1: PromCSE +81\.81\*  ", shown["promcse-sup-bert-base"])
    assert "--system: no preset has 'elmo' in its name" in cse("preset", "list", "--system", "elmo").refused()


def test_a_system_of_a_paper_never_trains_on_sample_text(cse, empty, monkeypatch):
    """Without the hub `prepare` ends in one line; the text is chosen by the preset, and only by asking otherwise."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(empty / "cache"))
    for name in ("dev", "evaluation", "cxc"):
        (empty / "data/raw" / name).mkdir(parents=True)
    where = "princeton-nlp/datasets-for-simcse/nli_for_simcse.csv"
    said = cse("preset", "use", "promcse-eh-bert-base").out.splitlines()
    assert "  data.source: sample -> hub" in said
    assert said[-1].endswith(f"`dvc repro` trains it on {where} from the hub")
    done = cse("prepare")
    assert (done.code, done.out) == (75, "")
    assert done.err.startswith(f"error: {where}: the hub cannot be reached and the cache does not have it; ")
    assert not (empty / "data/prepared").exists()

    (empty / "params.yaml").write_text("data: {max_rows: 30}\n")
    said = cse("preset", "use", "promcse-eh-bert-base", "--keep-data").out.splitlines()
    assert said[-1].endswith("`dvc repro` trains it on the sample text")
    assert cse("prepare").code == 0


def test_every_key_is_listed_with_its_default_and_the_files_own_values(cse, empty):
    def listed(*words: str) -> list[str]:
        return [line for line in unstyle(cse("settings", *words).out).splitlines() if not line.startswith(" ")]

    keys = [line.split(":")[0] for line in listed()]
    assert [key for key in keys if "[]" not in key] == [key for key, _ in walk_keys()]
    assert [line.split(":")[0] for line in listed("whitening")] == ["post.kind", "post.dimension"]
    (empty / "params.yaml").write_text("augment: {repeat_words: 0.2}\nprompt: {length: 12}\n")
    assert listed("--changed") == ["augment.repeat_words: 0.0   params.yaml: 0.2"]
