"""Stage ``train``: what it publishes, and mistakes of a user's that end in one line before any training step."""

import csv
import re
import shutil
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import cse.stages.train as stage
from cse.artifact import sha256
from cse.data.store import TRAIN_FILE, PreparedData, write_rows
from cse.data.tasks.kinds import put_before
from cse.data.tasks.store import open_dev
from cse.errors import CseError
from cse.evaluation.dev_facts import DevScore
from cse.evaluation.score import score_dev
from cse.model.checkpoint import read_config
from cse.model.sentence_encoder import SentenceEncoder
from tests.parts import refusal, sentence_encoder
from tests.stages.training import train_in
from tests.tiny import make_backbone_folder, write_report

SENTENCES = ["the cat sleeps", "a dog runs near the old house in the rain", "book"]
UNTRAINED = {"train.parameters": "none", "prompt.kind": "none"}


def table(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def test_training_publishes_checkpoint_metrics_and_plots(run, settings, data, tmp_path, capsys):
    facts = run(settings())
    assert (facts["steps"], facts["trained_on"]) == (16, "sentences.csv, 60 sentences")
    assert facts["dev_spearman"] >= facts["start_dev_spearman"]
    scores = table(tmp_path / "run/plots/dev.csv")
    assert [row["step"] for row in scores] == ["0", "5", "10", "15", "16"]
    assert float(scores[0]["spearman"]) == facts["start_dev_spearman"]
    kept = read_config(tmp_path / "run/checkpoint")["facts"]
    rows = {"source": "sentences.csv", "view": "sentences", "rows": 60, "dropped": 0, "evaluation_overlap": 0}
    assert kept["data"] == rows | {"content": sha256(data["sentences"] / TRAIN_FILE)[:16]}
    assert facts["parameters"] == {"trained": kept["parameters"]["trained"]} == {"trained": 4 * 2 * 3 * 32}
    assert kept["environment"].items() >= {"torch": torch.__version__, "device": "cpu"}.items()
    assert not [*(tmp_path / "scratch/resume").iterdir(), *(tmp_path / "scratch/locks").iterdir()]
    assert not [path for kind in ("tmp", "old") for path in tmp_path.rglob(f".*.{kind}-*")]
    assert "trained 16 steps, dev Spearman" in capsys.readouterr().out


def test_without_training_the_checkpoint_is_a_read_out(run, settings, models, data, tmp_path):
    facts = run(settings(UNTRAINED | {"pooler.kind": "mean_first_last", "train.precision": "bf16"}))
    assert "steps" not in facts
    assert facts["parameters"]["trained"] == 0
    assert read_config(tmp_path / "run/checkpoint")["facts"]["precision"] == "fp32", "nothing was rounded"
    loaded = SentenceEncoder.load(tmp_path / "run/checkpoint")
    bare = sentence_encoder(SentenceEncoder.load(models["bert"]).backbone, pooler="mean_first_last")
    assert np.array_equal(loaded.encode(SENTENCES), bare.encode(SENTENCES))
    dev = open_dev(PreparedData(data["sentences"]))
    assert facts["dev_spearman"] == pytest.approx(score_dev(bare, dev).value, abs=1e-4)


def test_whitening_is_fitted_behind_the_trained_model(run, settings, data, tmp_path):
    facts = run(settings({"post.kind": "whitening", "post.dimension": 8}))
    loaded, prepared = SentenceEncoder.load(tmp_path / "run/checkpoint"), PreparedData(data["sentences"])
    assert facts["dev_spearman"] == pytest.approx(score_dev(loaded, open_dev(prepared)).value, abs=1e-3)
    sentences = list(dict.fromkeys(prepared.train["sent0"].to_pylist()))
    white = loaded.encode_counting(sentences, max_length=64, normalize=False).embeddings.astype(np.float64)
    np.testing.assert_allclose(np.cov(white.T), np.eye(8), atol=1e-3)


def scores(monkeypatch, values):
    left = iter(values)
    monkeypatch.setattr("cse.training.ready.score_dev", lambda *_, **__: DevScore(next(left)))


def test_a_training_says_whether_it_improves_and_keeps_its_start_if_not(run, settings, tmp_path, monkeypatch, capsys):
    scores(monkeypatch, [50.0, 49.0, 52.0, 47.0, 46.0])
    run(settings(), "better")
    assert "trained 16 steps, dev Spearman 52.00 at step 10 (before training 50.00): " in capsys.readouterr().out
    monkeypatch.setattr("cse.training.encoder._INIT_STD", 0.0)
    scores(monkeypatch, [50.0, 49.0, 48.0, 47.0, 46.0])
    facts = run(settings())
    assert (facts["start_dev_spearman"], facts["dev_spearman"], facts["best_step"]) == (50.0, 50.0, 0)
    assert not load_file(tmp_path / "run/checkpoint/weights.safetensors")["prompt.table"].any()
    said = capsys.readouterr()
    assert "before training: dev Spearman 50.00" in said.err
    assert "trained 16 steps, dev Spearman 50.00: keeping the initial weights" in said.out


def test_dev_pairs_choose_nothing_where_no_term_compares_sentences(run, settings, tmp_path, monkeypatch, capsys):
    changes = {"objective.masked_lm.weight": 1.0, "objective.nt_xent.weight": 0.0}
    changes |= {"objective.replaced_tokens.weight": 1.0, "objective.replaced_tokens.generator": "unigram"}
    scores(monkeypatch, [50.0, 60.0, 40.0, 30.0, 20.0])
    facts = run(settings(changes))
    assert (facts["start_dev_spearman"], facts["dev_spearman"], "best_step" in facts) == (50.0, 20.0, False)
    assert "compares no sentences: keeping the last weights" in capsys.readouterr().err
    scores(monkeypatch, [10.0, 20.0, 30.0, 40.0, 50.0])
    run(settings(changes), "rising")
    kept, rising = (tmp_path / name / "checkpoint/weights.safetensors" for name in ("run", "rising"))
    assert kept.read_bytes() == rising.read_bytes()


def stage_in(settings, data, folder, name, launch=stage.launched):
    places = {"checkpoint": folder / name, "metrics": folder / f"{name}.json", "plots": folder / f"{name}.plots"}
    return train_in(folder, settings, data["sentences"], launch=launch, **places)


def test_a_second_training_at_once_is_refused_before_it_starts(settings, data, tmp_path):
    """One with the same output, whatever it trains, and one of the same settings, wherever it writes."""
    first, other = settings({"train.epochs": 1}), settings({"train.epochs": 1, "train.seed": 7})
    refusals = []

    def second(training):
        for chosen, name in ((other, "out"), (first, "elsewhere")):
            refusals.append(refusal(stage_in, chosen, data, tmp_path, name, launch=lambda _: pytest.fail("it trained")))
        return stage.launched(training)

    (tmp_path / "scratch/locks").mkdir(parents=True)
    stage_in(first, data, tmp_path, "out", launch=second)
    assert re.search(r"out: another training is writing here; wait until it finishes, or give another", refusals[0])
    assert re.search(r"resume/\w+: a training with the same settings and data is running", refusals[1])
    stage_in(other, data, tmp_path, "out")  # the lock went with the first
    assert len(table(tmp_path / "out.plots/train.csv")) == 2


LESS = r"^train.mini_batch_size: out of memory \(cpu\) with 16 sentences at once; set it to 8 or less .*batch_size$"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), LESS),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you ..."), LESS),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "^mat1 and mat2 shapes cannot be multiplied$"),
    ],
)
def test_out_of_memory_alone_is_one_line_that_names_what_to_lower(run, settings, monkeypatch, error, said):
    monkeypatch.setattr("cse.training.batch.Batcher.encode", Mock(side_effect=error))
    with pytest.raises(CseError if said == LESS else RuntimeError, match=said):
        run(settings())


TRIPLETS = {"data.view": "triplets", "backbone.texts": {"query": "the old ", "passage": "a red "}}
ROLES = {"train.roles": ["query", "passage", "passage"]}
LONG = {"template.text": "a b c d e f {sentence} h i j {mask}", "pooler.kind": "mask", "train.parameters": "full"}
WORDS = {"backbone.name": "words", "prompt.kind": "none", "train.parameters": "full"}
LABELS = {"data.view": "categories", "objective.label_proxies.weight": 1.0}
QUERY = {"query": "the old ", "passage": "red " * 5}
UNFIT = [
    ("labelled", {}, "contains labelled, but objective.nt_xent needs unlabelled rows: set its weight to 0"),
    ("sentences", LABELS, "contains sentences, but objective.label_proxies needs labelled texts"),
    ("sentences", LONG | {"prompt.kind": "none"},
     "^template.text: .* has 12 tokens, so the 12 of train.max_length leave no room"),
    ("sentences", {"post.kind": "whitening", "post.dimension": 33},
     "^post.dimension: 33 is not between 1 and 32, the encoder's width"),
    ("sentences", WORDS,
     "^train.parameters: .*glove.txt holds word vectors, which cannot be trained; set it to none"),
    ("triplets", TRIPLETS | {"train.roles": ["query", "passage"]}, "train.roles: 2 roles for 3 columns of text"),
    ("triplets", TRIPLETS | {"train.roles": ["query", "pasage", "passage"]}, "'pasage' is not known; one of query, p"),
    ("triplets", TRIPLETS | {"backbone.texts": {"query": "red " * 600}}, "leaves no room for the sentence"),
    ("triplets", TRIPLETS | ROLES | {"backbone.texts": QUERY},
     "train.max_length: the task text 'red .* takes 7 of its 12 tokens, .* raise it to 14 or shorten"),
    ("sentences", {"objective.matryoshka.weight": 1.0, "objective.matryoshka.widths": [32]},
     "32 is not below the 32 dim"),
]  # fmt: skip
if not torch.cuda.is_available():
    UNFIT.append(("sentences", {"train.device": "cuda"}, r"^device: cuda was requested, but torch sees no GPU"))


@pytest.mark.parametrize(("view", "changes", "message"), UNFIT)
def test_what_does_not_fit_the_rows_the_model_or_the_machine(
    run, settings, models, tmp_path, monkeypatch, view, changes, message
):
    monkeypatch.setattr("cse.training.batch.Batcher.encode", lambda *_, **__: pytest.fail("a step was taken"))
    if changes.get("backbone.name") == "words":
        changes = changes | {"backbone.name": str(models["words"])}
    assert re.search(message, refusal(run, settings(changes), view=view))
    assert not list((tmp_path / "scratch").rglob("state.pt"))


def test_rows_that_give_no_negative(settings, data, tmp_path):
    few = shutil.copytree(data["sentences"], tmp_path / "few")
    plain = {"objective.nt_xent.weight": 0.0, "train.epochs": 1}
    for rows, term, least in ((7, "contrastive_tension", 8), (1, "nt_xent", 2)):
        write_rows(few / TRAIN_FILE, "sentences", [(f"the cat {number}",) for number in range(rows)])
        write_report(few, "sentences", rows)
        said = refusal(train_in, tmp_path, settings(plain | {f"objective.{term}.weight": 1.0}), few)
        assert f"objective.{term} uses other rows as negatives; prepare at least {least}" in said
    alone = settings(plain | {"objective.masked_lm.weight": 1.0})
    assert train_in(tmp_path, alone, few)["steps"] == 1, "tokens have no negatives"


def test_two_equal_copies_of_a_sentence_are_refused(run, settings, tmp_path):
    still = make_backbone_folder(tmp_path / "still", "bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    changes = {"backbone.name": str(still), "train.epochs": 1}
    said = refusal(run, settings(changes))
    assert "still has no dropout" in said and "; set it, to 0.3 say, or prompt.dropout" in said
    run(settings(changes | {"prompt.dropout": 0.1}))


def test_a_sentence_has_half_of_the_tokens_beside_its_task_text(opened, settings):
    changes = ROLES | TRIPLETS | {"backbone.texts": {"query": "red " * 4, "passage": "a "}}
    column = opened(settings(changes), "triplets").tables()[0].columns[0]
    rows = {tuple(column.ids[a:b].tolist()) for a, b in zip(column.starts, column.starts[1:], strict=False)}
    assert len(rows) > 20, "texts behind the longest task text differ"


@pytest.mark.parametrize("post", ["none", "whitening"])
def test_the_reported_dev_score_is_read_as_the_gate_reads_it(run, opened, settings, tmp_path, post):
    """Of the training's own reading, here by roles, it has a score too."""
    changes = TRIPLETS | ROLES | {"post.kind": post}
    before = opened(settings(changes), "triplets")
    facts = run(settings(changes), view="triplets")
    trained, dev = SentenceEncoder.load(tmp_path / "run/checkpoint"), before.dev
    assert facts["dev_spearman"] == pytest.approx(score_dev(trained, dev).value, abs=1e-3)
    read_in_roles = put_before(dev, "the old ", "a red ")
    trained.post = None
    assert facts["selection_spearman"] == pytest.approx(score_dev(trained, read_in_roles).value, abs=1e-3)
    assert abs(facts["selection_spearman"] - facts["dev_spearman"]) > 1
    start = pytest.approx(score_dev(before.encoder, dev).value, abs=1e-3) if post == "none" else None
    assert facts.get("start_dev_spearman") == start, "the model before training had no post-processing"


def test_a_model_trained_for_shorter_vectors_offers_them(data, settings, tmp_path):
    changes = {"objective.matryoshka.weight": 1.0, "objective.matryoshka.widths": [16, 8]}
    train_in(tmp_path, settings(changes), data["sentences"])
    assert read_config(tmp_path / "checkpoint")["widths"] == [8, 16]
    assert SentenceEncoder.load(tmp_path / "checkpoint").encode("a dog", dimensions=8).shape == (8,)
    assert "the loss sees the projector's output" in refusal(settings, changes | {"pooler.mlp": "train_only"})
