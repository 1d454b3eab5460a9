"""What `cse adapt` makes of what a user has."""

import pytest

from cse.adapt.look import Reading, base_settings, look, view_of_source
from cse.settings import PARAMS_FILE, Settings
from cse.settings.load import settings_with
from tests.rows import write_lines, write_table

LABELLED = "text,category\na,x\nb,x\nc,y"


def write(path, text="a b\nc d"):
    return write_lines(path, [text])


def test_a_file_is_known_by_its_columns_and_a_folder_by_its_files(tmp_path):
    for name, text, view in (
        ("lines.txt", "one\ntwo", "sentences"),
        ("questions.csv", "text,category\none,a", "sentences"),
        ("pairs.csv", "sent0,sent1\na,b", "pairs"),
        ("nli.csv", "premise,hypothesis,label\na,b,neutral", "pairs"),
        ("bge.jsonl", '{"query": "q", "pos": ["a"], "neg": ["b"]}', "triplets"),
        ("beir/corpus.jsonl", '{"_id": "1", "title": "t", "text": "b"}', "documents"),
        ("faq.csv", "question,answer\nq,a", "documents"),
        ("many/page.md", "# Title\n\nText.", "documents"),
        ("one/a.txt", "a b\nc d", "sentences"),
    ):
        assert view_of_source(write(tmp_path / name, text)) == view, name
    write(tmp_path / "many/a.txt")
    views = [view_of_source(tmp_path / name) for name in ("many", "one", "beir")]
    assert views == ["documents", "sentences", "documents"]


def test_labels_are_trained_on_and_measured(tmp_path):
    write(tmp_path / "intents/train.csv", LABELLED)
    write(tmp_path / "intents/test.csv", "text,category\na,b")
    found = look([], labels=tmp_path / "intents").settings
    assert found["data.train_path"] == str(tmp_path / "intents/train.csv")
    assert found["data.task_path"] == str(tmp_path / "intents")
    assert found["objective.label_proxies.weight"] == found["objective.supervised_contrastive.weight"] == 1.0
    beside = look([write(tmp_path / "plain.txt")], labels=tmp_path / "intents")
    assert [one["terms"] for one in beside.settings["data.more"]] == [{"nt_xent": 1.0}], "it has no labels"
    settings_with(Settings(), beside.settings)
    one = look([], labels=write(tmp_path / "intents.csv", LABELLED))
    assert one.settings["data.train_path"] == str(tmp_path / "intents.csv")
    assert "data.task_path" not in one.settings, "what is measured is held out"


@pytest.mark.parametrize(("labels", "texts", "many"), [(40, 11, False), (40, 12, True), (4, 99, False), (4, 100, True)])
def test_of_few_texts_of_a_label_or_in_all_their_probability_chooses(tmp_path, labels, texts, many):
    rows = [(f"text {number} of {label}", label) for label in range(labels) for number in range(texts)]
    found = look([], labels=write_table(tmp_path / "few.csv", ("text", "category"), rows)).settings
    chooses = (found["train.dev_measure"], found["data.hold_out"])
    assert chooses == (("MAP", 0.1) if many else ("class probability", 0.2))
    assert found["train.distinct_batches"] is (labels >= 32), "fewer would not fill a batch"
    assert ("objective.supervised_contrastive.weight" in found) is (labels < 32)


def test_columns_of_any_name(tmp_path):
    for part in ("train", "test"):
        write(tmp_path / f"intents/{part}.csv", "id;utterance;scenario;label\n1;a;x;1\n2;b;x;2\n3;c;y;3")
    found = look([], labels=tmp_path / "intents", reading=Reading(("utterance", "scenario")))
    assert found.settings["data.columns"] == ["utterance", "scenario"]
    usual = write(tmp_path / "a.csv", "sentence,intent,group\na,x,1\nb,x,1\nc,y,2")
    assert "(columns sentence, intent)" in look([], labels=usual).told
    assert "data.columns" not in look([], labels=usual).settings, "each file is read by its own usual names"
    assert look([], labels=usual, reading=Reading((None, "group"))).settings["data.columns"] == ["sentence", "group"]


def test_pairs_that_their_labels_leave_out_are_counted(tmp_path):
    head, rows = "sentence1,sentence2,label\n", "a,b,1\nc,d,0\ne,f,0"
    found = look([write(tmp_path / "p.csv", head + rows)])
    assert found.told == f"{tmp_path}/p.csv: pairs; left out of 3: 2 labelled_negative"
    (tmp_path / "old.csv").write_bytes("sent0;sent1\né;x\n".encode("cp1252"))
    assert look([tmp_path / "old.csv"], reading=Reading(encoding="cp1252")).told.endswith("pairs")
    scored = look([write(tmp_path / "s.csv", head.replace("label", "score") + "a,b,4.5\nc,d,0.5")])
    assert scored.told.endswith("pairs of 4 or more are positives, the others are left out; left out of 2: 1 low_score")


def test_further_sources_are_trained_on_beside_the_first(tmp_path):
    triplets = write(tmp_path / "NLI (all).csv", "anchor,positive,negative\na,b,c")
    lines, faq = write(tmp_path / "lines.txt"), write(tmp_path / "faq.csv", "question,answer\nq,a")
    found = look([lines, triplets, faq])
    assert found.settings["data.more"] == [
        {"name": "nli-all", "path": str(triplets), "view": "triplets"},
        {"name": "faq", "path": str(faq), "view": "documents", "pairs": "question_answer"},
    ]
    assert found.settings["objective.energy_hinge.weight"] == 0
    several = write(tmp_path / "several.csv", "anchor,positive,negative_1,negative_2\na,b,c,d")
    assert look([several]).settings["train.distinct_batches"] is True, "two rows of one pair do not meet"
    (more,) = look([triplets, lines]).settings["data.more"]
    assert more == {"name": "lines", "path": str(lines), "view": "sentences", "terms": {"energy_hinge": 0.0}}
    found = look([lines, write(tmp_path / "other/lines.txt")], labels=write(tmp_path / "labels.csv", LABELLED))
    assert found.settings["data.view"] == "categories"
    assert [one["name"] for one in found.settings["data.more"]] == ["lines", "lines-2"]


# ---- what an adaptation starts from, whatever params.yaml holds -----------------------------------------------------

LEFT_OVER = """
backbone: {name: there}
data: {task_path: another/task, view: pairs}
prompt: {length: 40}
train: {epochs: 3, dev_measure: MAP, precision: fp32, device: cpu}
objective: {energy_hinge: {weight: 0.0}}
export: {score_loss: 2.0}
"""


def test_what_another_run_left_is_told_and_not_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    PARAMS_FILE.write_text(LEFT_OVER)
    settings, told = base_settings(PARAMS_FILE, {"data.view": "categories", "objective.energy_hinge.weight": 0.0}, {})
    assert (settings.prompt, settings.train.epochs, settings.train.dev_measure) == (Settings().prompt, 1, None)
    assert settings.data.task_path == Settings().data.task_path
    taken = (settings.backbone.name, settings.export.score_loss, settings.train.precision, settings.train.device)
    assert taken == ("there", 2.0, "fp32", "cpu")
    assert told == (
        "an adaptation starts from the defaults; not taken from params.yaml: data.task_path another/task, "
        "prompt.length 40, train.epochs 3, train.dev_measure MAP (-s sets a value)"
    ), "what the command sets itself is no news"
    # a file that was named is taken but for its data
    settings, told = base_settings(PARAMS_FILE, {"data.view": "pairs"}, {"train.epochs": 2}, named=True)
    assert (settings.prompt.length, settings.train.epochs, settings.train.dev_measure) == (40, 2, None)
    assert settings.data.task_path == Settings().data.task_path
    assert told.endswith(": data.task_path another/task, train.dev_measure MAP (-s sets a value)")
