"""`cse adapt` on a tiny backbone: the screen it prints, what it leaves, and that it goes on where it was killed."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cse.data.store import PreparedData
from cse.ledger import Ledger
from cse.model.checkpoint import read_config
from cse.runtime.onnx_encoder import OnnxEncoder
from tests.adapt.conftest import WORDS
from tests.rows import write_lines, write_table


def settings(**values: object) -> tuple[str, ...]:
    return tuple(word for key, value in values.items() for word in ("-s", f"{key.replace('__', '.')}={value}"))


TINY = settings(prompt__length=4, train__max_length=16, train__batch_size=8, pooler__kind="mean")
# what chooses among models of many rows, and their learning rate, though these are few
MANY = settings(train__dev_measure="MAP", data__hold_out=0.1, train__learning_rate=0.1)
SHORT = ("--budget", "10m", *settings(train__max_steps=8))  # of three seeds, however busy the machine is
LABELS = ("adapt", "--labels", "labels.csv", "--shared-backbone", *TINY, *MANY)
# the losses and batches of many labels, though these are few
AS_MANY = LABELS + settings(
    objective__nt_xent__weight=1, objective__supervised_contrastive__weight=0, train__distinct_batches="true"
)


@pytest.mark.slow
def test_the_answer_of_a_few_trainings_and_what_it_leaves(cse, labelled):
    done = cse(*LABELS, *SHORT, "--out", "out")
    assert done.code == 0, done.err
    summary = (labelled / "out/summary.txt").read_text()
    lines = summary.splitlines()
    assert summary in done.out and re.search("labels held out kNN:.*95 % interval.*10 items", summary)
    page = (labelled / "out/report/report.html").read_text()
    assert 'id="verdict"' in page and lines[-1].split(";")[0] in page
    rungs = ("the bare backbone", "a head on the bare backbone", "prompts", "prompts with a head")
    steps = tuple(f"{rung}: dev " for rung in rungs)
    assert [line for line in done.err.splitlines() if line.startswith(steps)] == [
        line.strip().removesuffix(" (chosen)") for line in lines if line.strip().startswith(steps)
    ], "each step was said as it happened"
    (shipped,) = (line.split()[3] for line in lines if line.startswith("in the bundle: "))
    width = 4 if "head" in shipped else 32
    assert OnnxEncoder(labelled / "out/bundle", provider="cpu").encode("the cat").shape == (width,)
    again = cse(*LABELS, *SHORT, "--out", "out")
    assert again.code == 0
    assert "training prompts" in done.err and "training" not in again.err, "nothing is trained again"
    params = ("--params", "out/params.yaml")
    for command in ("prepare", "train"):
        assert cse(command, *params).code == 0
    pipeline, own = (read_config(Path(place)) for place in ("data/checkpoint", f"out/runs/{shipped}/checkpoint"))
    for part in ("settings", "data"):
        assert pipeline["facts"][part] == own["facts"][part], "all held-out rows pick its weights"


@pytest.mark.slow
def test_of_few_rows_those_that_chose_are_trained_on_in_the_end(cse, labelled):
    """Five texts a label: two choose, three train; the bundle's model was trained on all five."""
    for split, numbers in (("train", range(5)), ("test", range(5, 9))):
        rows = [(f"{WORDS[at]} {WORDS[at + 4]} {WORDS[-n]}", f"label {at}") for at in range(4) for n in numbers]
        write_table(labelled / f"few/{split}.csv", ("text", "category"), rows)
    command = ("adapt", "--labels", "few", "--own-backbone", *TINY, *SHORT, "--out", "out")
    done = cse(*command)
    assert done.code == 0, done.err
    share = "40% of the labelled rows were held out to choose"
    system = json.loads((labelled / "out/ledger/choice.json").read_text())["result"]
    word = "fitted" if system == "backbone" else "trained"  # nothing is trained of the bare backbone
    assert f"{share}: what they chose is {word} again, on them too" in done.err
    assert re.search(f"note: {share}; what is measured( and in the bundle)? was {word} again, on them too", done.out)
    runs = {path.name for path in (labelled / "out/runs").iterdir()}
    measured = {path.name for path in (labelled / "out/all_rows/records").iterdir()}
    assert measured == {"backbone"} | {run for run in runs if run.partition("-")[0] == system}
    assert len(PreparedData(labelled / "out/prepared").train["sent0"].unique()) == 12
    trained_on = PreparedData(labelled / "out/all_rows/prepared").train["sent0"].unique().to_pylist()
    assert len(trained_on) == 20, "none of the test rows"
    facts = OnnxEncoder(labelled / "out/bundle", provider="cpu").classifier.facts
    assert facts.rows == 8, "held out of the model before calibrates, and not what this one was trained on"
    (shipped,) = (line.split()[3] for line in done.out.splitlines() if line.startswith("in the bundle: "))
    if shipped != "the":  # the bare backbone; the model trained again has no dev score, and another's is not its own
        assert not re.search("^in the bundle: .*, dev ", done.out, re.MULTILINE)
        assert cse("prepare", "--params", "out/params.yaml").code == 0
        assert PreparedData(labelled / "data/prepared").train["sent0"].unique().to_pylist() == trained_on
    again = cse(*command)
    assert again.code == 0 and "training prompts" in done.err and "training" not in again.err
    assert again.out.strip() and done.out.endswith(again.out)


def test_with_labels_a_head_is_what_a_short_budget_allows(cse, labelled):
    done = cse(*LABELS, "--budget", "0.01s", "--out", "out")
    assert done.code == 0, done.err
    assert "here, the budget is 0.01 seconds; raise it, or train on fewer rows" in done.err
    assert "note: the budget allowed no prompts: --budget: one training" in done.out
    assert re.search(r"in the bundle: (head \(|the bare backbone)", done.out)
    assert (labelled / "out/bundle/bundle.json").is_file()
    assert "choice" not in Ledger(labelled / "out/ledger", "").names()


@pytest.mark.slow
def test_three_seeds_and_full_fine_tuning(cse, labelled):
    done = cse(*AS_MANY, "--own-backbone", *SHORT, "--out", "out")
    assert done.code == 0, done.err
    assert "3 seeds" in done.out
    records = sorted((labelled / "out/ledger").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    ended = [path.stem for path in records]
    assert {f"train {system}-{seed}" for system in ("prompts", "full_head") for seed in (42, 43, 44)} <= {*ended}
    before = ended[: ended.index("choice")]
    assert not [name for name in before if name.startswith("measure ") and name != "measure backbone"]
    assert len(re.findall("^training ", done.err, re.MULTILINE)) == 2 * 3, "three seeds of each system"


def test_text_in_a_language_that_the_backbone_does_not_read_is_said_before_training(cse, place, tiny_folders):
    lines = (f"Die Karte {n} ist auch nach zwei Wochen noch nicht angekommen" for n in range(30))
    write_lines(place / "lines.txt", lines)
    shutil.copytree(tiny_folders["bert"], "english")
    write_lines(Path("english/README.md"), ["---", "language: en", "---"])
    done = cse("adapt", "lines.txt", "--backbone", "english")
    assert "note: the text is in another language (de) than english was trained on (en); prompts cannot" in done.err


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_stage_of_dvc_runs_it_when_the_text_changes(labelled):
    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=labelled, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    run("git", "init", "-q")
    dvc = (sys.executable, "-m", "dvc")
    run(*dvc, "init", "-q")
    adapt = f"cse {' '.join(LABELS)} -s train.max_steps=5 --budget 10m --out data/intents --again"
    stage = ("-q", "-n", "adapt-intents", "-d", "labels.csv", "--outs-persist", "data/intents")
    run(*dvc, "stage", "add", *stage, f"{sys.executable} -m {adapt}")
    assert "adaptation to" not in run(*dvc, "repro", "adapt-intents")
    assert "didn't change" in run(*dvc, "repro", "adapt-intents")
    with (labelled / "labels.csv").open("a", encoding="utf-8") as stream:
        stream.write("one more text,label 0\n")
    assert "made of 71 texts" in run(*dvc, "repro", "adapt-intents")
    assert "labels held out kNN" in (labelled / "data/intents/summary.txt").read_text()
