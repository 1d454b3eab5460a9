"""`cse adapt --backbone A B C`: bare backbones on the same held-out rows, and the one that wins for its cost."""

import re

import numpy as np

from cse.adapt import backbones
from cse.adapt.backbones import MOST, SAMPLE, Shown, choose_backbone
from cse.cli.adapt import adapt
from cse.data.tasks.kinds import LabelledTexts, Retrieval
from cse.data.tasks.parts import sample_of
from cse.evaluation.score import ACCURACY, CLASS_PROBABILITY
from cse.ledger import Ledger
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.settings import Settings
from cse.settings.model import BackboneSettings
from tests.adapt.test_few import LABELS_OF, table
from tests.rows import write_table

ROWS = 2000  # that measure, as many as there are reference rows: more than a sample has, fewer than two
TASK = LabelledTexts("t", ["k"] * ROWS, ["a", "b"] * (ROWS // 2), ["t"] * ROWS, ["a", "b"] * (ROWS // 2))
SPEED = {"small": 300.0, "middle": 200.0, "large": 20.0}


def chosen(monkeypatch, ledger: Ledger, right: dict[str, float]) -> tuple[str, list[tuple[str, int]]]:
    """Return which backbone goes on, and which were measured on how many test rows; each is right at random."""
    measured = []

    def measure(backbone, task, measure, device):
        assert measure == ACCURACY
        measured.append((backbone.name, len(task)))
        random = np.random.default_rng(int(SPEED[backbone.name]))  # the rows that one tells are not those of another
        values = (random.permutation(len(task)) < right[backbone.name] * len(task)).astype(float)
        return vars(Shown(backbone.name, 90.0, SPEED[backbone.name], values.tolist()))

    monkeypatch.setattr(backbones, "_measure", measure)
    first, *others = (BackboneSettings(name=name) for name in right)
    settings = Settings(backbone=first)
    found, told = choose_backbone(settings, others, TASK, CLASS_PROBABILITY, ledger)
    assert told == [f"of 3 backbones {found.backbone.name} goes on: {backbones.RULE.format(ACCURACY)}"]
    return found.backbone.name, measured


def test_the_sample_puts_out_what_is_plainly_worse_and_more_rows_tell_the_rest(monkeypatch, tmp_path, capsys):
    right = {"large": 0.90, "small": 0.87, "middle": 0.60}
    name, measured = chosen(monkeypatch, Ledger(tmp_path), right)
    assert name == "large", "3 points are nothing on 500 rows, and something on 2,000"
    assert measured == [("large", 500), ("small", 500), ("middle", 500), ("large", ROWS), ("small", ROWS)]
    shown = capsys.readouterr().err
    assert re.search(r"500 items, 1,000 of 4,000 texts:\nbare backbone +accuracy +against the best +MB +texts/s", shown)
    assert re.search(r"middle +60\.00 +-30\.00 \(-\d.* to -\d.*\) +90 +200", shown)
    assert re.search(r"4,000 of 4,000 texts:\n.*\nlarge +90\.00 +best +90 +20\nsmall +87\.00 +-3\.00 ", shown)
    again = chosen(monkeypatch, Ledger(tmp_path), right)
    assert again == ("large", []), "what is on record is not measured again"


def test_the_fastest_of_equals_goes_on(monkeypatch, tmp_path):
    assert chosen(monkeypatch, Ledger(tmp_path), {"large": 0.90, "middle": 0.895, "small": 0.89})[0] == "small"


def test_a_sample_is_spread_over_labels_and_keeps_what_queries_look_for():
    labels = sorted(f"{number % 7}" for number in range(700))
    task = LabelledTexts("t", [f"k{n}" for n in range(700)], labels, [f"t{n}" for n in range(90)], labels[:90])
    part = sample_of(task, 140)
    assert ({*part.reference_label}, len(part.reference), len(part)) == ({*labels}, 70, 70)
    assert part.reference_label == [labels[int(text[1:])] for text in part.reference]
    documents = [f"d{n}" for n in range(1000)]
    judged = np.array([[0, 999, 2], [1, -1, 1], [1, 500, 1], [2, 7, 1]])
    search = Retrieval("s", ["q0", "q1", "q2"], documents, *judged.T)
    part = sample_of(search, 100)
    assert part.queries == search.queries and 95 <= len(part.documents) <= 98
    assert [[*part.documents, None][place] for place in part.document] == ["d999", None, "d500", "d7"]
    whole = sample_of(search, MOST)
    assert (whole.documents, whole.document[[0, -1]].tolist()) == (documents, [999, 7]) and SAMPLE < MOST


def test_several_names_behind_one_option_and_text_behind_them(tmp_path, tiny_folders):
    words = ["x.csv", "--backbone", "a", "b/c", "--task", "t", "--backbone=d", "--backbone", "e"]
    given = adapt.make_context("adapt", words).params
    assert (given["backbones"], [str(one) for one in given["sources"]]) == (("a", "b/c", "d", "e"), ["x.csv"])
    model, text = str(tiny_folders["bert"]), str(tmp_path)
    given = adapt.make_context("adapt", ["--backbone", "a", model, text]).params
    assert (given["backbones"], [str(one) for one in given["sources"]]) == (("a", model), [text])


def test_few_rows_tell_each_other_under_every_backbone(cse, place, tiny_folders):
    write_table(place / "few.csv", ("text", "label"), table(3))
    both = [str(tiny_folders["bert"]), str(tiny_folders["roberta"])]
    words = ("adapt", "--labels", "few.csv", "--out", "out", "--backbone", *both)
    done = cse(*words)
    assert done.code == 0, done.err
    assert "9 items, 9 of 9 texts:" in done.err and all(f"measuring {one}, bare" in done.err for one in both)
    told = re.search(r"of 2 backbones (\S+) goes on: the fastest whose accuracy is not below", done.out)
    assert told and told[1] in both
    bundle = OnnxEncoder(place / "out/bundle", provider="cpu")
    assert bundle.manifest.backbone["name"] == told[1] and bundle.classifier.facts.labels == sorted(LABELS_OF)
    assert cse(*words[:-1]).err.endswith("with --again\n"), "another list of backbones is another adaptation"
