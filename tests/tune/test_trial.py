"""One trial without Ray: what it sees, reports and leaves, how it fails; and what names a sweep's folder."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from cse.data.store import PreparedData
from cse.data.tasks.kinds import all_texts
from cse.data.tasks.store import OWN, TASKS_FILE, TEST, open_dev, open_tasks
from cse.errors import CseError
from cse.settings import load_settings
from cse.settings.load import settings_with
from cse.training import ready, training_code
from cse.tune.driver import _check_objective, _name, _recorded, trials_of
from cse.tune.spaces import Setting, Space, build_space
from cse.tune.trial import METRIC, WORST, run_trial
from tests.cli.workspace import contents
from tests.stages.training import train_in
from tests.tiny import make_backbone_folder

CONFIG = {"train.learning_rate": 0.02, "prompt.length": 3}
TRAIN = "cse.stages.place.train_stage"


def test_a_trial_equals_the_stage_and_is_trained_once(make_job, folder, monkeypatch):
    """Checkpoint, metrics and plots are, byte for byte, those of `cse train` with the trial's settings."""
    job, reports = make_job(), []
    run_trial(CONFIG, job, reports.append)
    out = folder / "by-hand"
    metrics = train_in(out, settings_with(job.settings, CONFIG), folder / "data/prepared")
    found = job.folder_of(CONFIG)
    for name in ("checkpoint", "train.json", "plots"):
        assert contents(found / name) == contents(out / name)
    assert [report["percent"] for report in reports] == [50, 100]
    assert reports[-1][METRIC] == metrics["dev_spearman"]
    result = job.record_of(CONFIG).result
    assert result[METRIC] == metrics["dev_spearman"] and result["values"] == CONFIG
    assert not (found / "scratch").exists()
    monkeypatch.setattr(TRAIN, lambda *_, **__: pytest.fail("trained again"))
    again = []
    run_trial(CONFIG, job, again.append)
    assert again == reports[-1:]


def test_a_trial_sees_its_rows_and_no_test_set(make_job, rows):
    job = make_job()
    prepared, data = PreparedData(rows), PreparedData(job.data)
    dev, tested = open_dev(prepared), open_tasks(prepared, TEST)
    assert open_dev(data).sentence1 == dev.sentence1 and len(data.train) == 64
    assert tested and not open_tasks(data, TEST) and not open_tasks(data, OWN)
    seen = {*all_texts(dev)}
    held = [text.encode() for task in tested for text in all_texts(task) if not any(text in each for each in seen)]
    bytes_of = (job.data / TASKS_FILE).read_bytes()
    assert len(held) > 20 and not [text for text in held if text in bytes_of]


def test_a_seed_makes_another_trial_but_for_that_of_the_settings(make_job):
    job = make_job(**{"train.seed": 7})
    wanted = trials_of(job, [Setting("long", {"prompt.length": 3}), Setting("nine", {"train.seed": 9})], 2)
    assert [(run.number, run.name, run.seed, run.config) for run in wanted] == [
        (1, "long", 7, {"prompt.length": 3}), (2, "nine", 9, {"train.seed": 9}),
        (3, "long", 8, {"prompt.length": 3, "train.seed": 8}), (4, "nine", 9, {"train.seed": 9}),
    ]  # fmt: skip
    listed = {"run": {"setting": "long", "prompt.length": 3, "train.seed": 7}}
    assert job.config_of(listed) == {"prompt.length": 3}


def test_a_sweep_needs_a_term_that_dev_pairs_can_judge(make_job, folder):
    weights = {"masked_lm": 1.0, "nt_xent": 0.0, "energy_hinge": 0.0}
    tokens_alone = {f"objective.{term}.weight": weight for term, weight in weights.items()}
    with pytest.raises(CseError, match=r"^tune: objective.masked_lm compares no sentences"):
        _check_objective(make_job(**tokens_alone).settings, folder / "data/prepared", Space("own", "grid", ()))


def broken(settings, **options):
    raise KeyError("no such\nrow")


@pytest.mark.parametrize(("config", "train", "reason"), [
    ({"train.learning_rate": 1e30}, None, "train.learning_rate: the loss is"),
    ({"train.max_steps": -1}, None, "train.max_steps: "),
    (CONFIG, broken, "KeyError: 'no such\\nrow'"),
], ids=["no number", "invalid settings", "anything else"])  # fmt: skip
def test_a_trial_that_fails_is_on_record_with_its_reason(make_job, monkeypatch, config, train, reason):
    job, reports = make_job(), []
    with monkeypatch.context() as patch:
        if train is not None:
            patch.setattr(TRAIN, train)
        run_trial(config, job, reports.append)
    assert reports == [{METRIC: WORST, "percent": 100}]
    assert reason in job.record_of(config).reason
    run_trial({"prompt.length": 2}, job, reports.append)  # the worker goes on
    assert reports[-1][METRIC] > WORST


def test_a_full_disk_is_no_failure_of_a_setting(make_job, monkeypatch):
    job, reports = make_job(), []

    def full(settings, **options):
        raise OSError(errno.ENOSPC, "No space left on device", "state.pt")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left") as failed:
        patch.setattr(TRAIN, full)
        run_trial(CONFIG, job, reports.append)
    assert (reports, [path.name for path in job.folder_of(CONFIG).iterdir() if path.name != "lock"]) == ([], [])
    lost = replace(job.wanted(1, CONFIG), reason=f"OSError: {failed.value}")
    with pytest.raises(CseError, match=r"1 of 2 trials found no space left in .* to retry them"):
        _recorded(job, [lost, replace(job.wanted(2, {"prompt.length": 2}), state="stopped")])
    run_trial(CONFIG, job, reports.append)
    assert reports[-1][METRIC] > WORST
    (found,) = _recorded(job, [lost])  # what is on record stands
    assert found.state == "finished"


def test_what_changes_a_score_is_another_sweep_and_nothing_else_is(folder, rows, tmp_path, monkeypatch):
    """Which models are read: ``tests/stages/test_inputs``; the list of code: ``tests/test_architecture``."""

    def name_of(**values):
        settings = load_settings(folder / "params.yaml", {"tune.over": ["prompt.length=[2, 3]"]} | values)
        return _name(build_space(settings), settings, rows)

    usual = name_of()
    same = {"bank.domains": {"tickets": {"data": "data/raw/tickets"}}, "train.save_seconds": 3, "tune.concurrent": 3}
    assert [name_of(**{key: value}) for key, value in same.items()] == [usual] * 3
    # the best of a training is kept: more evaluations find a better one, unless the search chooses them
    for rates, another in (("[0.01, 0.02]", True), ("1e-3..1e-2", False)):
        values = {"tune.over": [f"train.learning_rate={rates}"]}
        assert (name_of(**values, **{"train.eval_every": 7}) != name_of(**values)) is another
    # other bytes in a folder that is searched
    generators, key = [str(tmp_path / name) for name in ("one", "other")], "objective.replaced_tokens.generator_folder"
    values = {
        "objective.replaced_tokens.weight": 0.1, "objective.replaced_tokens.generator": "folder", key: generators[0],
        "tune.over": [f"{key}={generators}"],
    }  # fmt: skip
    names = []
    for seeds in ((1, 2), (1, 2), (1, 9)):
        for seed, model in zip(seeds, generators, strict=True):
            make_backbone_folder(Path(model), "bert", seed=seed, head=True, num_hidden_layers=1)
        names.append(name_of(**values))
    assert names[0] == names[1] != names[2]
    (tmp_path / "sts.py").write_text("# scores otherwise")
    code = [tmp_path / "sts.py" if path.name == "sts.py" else path for path in training_code()]
    monkeypatch.setattr(ready, "training_code", lambda: code)
    assert name_of() != usual
