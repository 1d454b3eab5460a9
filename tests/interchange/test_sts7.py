"""MiniLM with trained prompts: STS through every tool that can load it equals ours."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from click.testing import CliRunner

from cse.cli.main import cli
from cse.data.suite import read_suite
from cse.evaluation.mteb_encoder import MtebEncoder, find_tasks, run_tasks
from cse.evaluation.sts import evaluate_sts
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.onnx_encoder import OnnxEncoder

SENTEVAL = Path(__file__).parents[3] / "shared/data/senteval"
EVERY = int(os.environ.get("STS7_EVERY", "27"))
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.shared_data,
    pytest.mark.skipif(not SENTEVAL.is_dir(), reason="the shared evaluation data are not here"),
]


@pytest.fixture(scope="module")
def forms(finished_clone, tmp_path_factory):
    """The checkpoint and the bundle of a finished clone, and what else is exported from the checkpoint."""
    folder = tmp_path_factory.mktemp("forms")
    data = finished_clone.folder / "data"
    (folder / "checkpoint").symlink_to(data / "checkpoint")
    (folder / "onnx").symlink_to(data / "bundle")
    for name in ("sentence-transformers", "peft"):
        options = ["--params", finished_clone.folder / "params.yaml", "--data", data / "prepared"]
        arguments = ["export", data / "checkpoint", *options, "--format", name, "--out", folder / name]
        done = CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output
    return folder


@pytest.fixture(scope="module")
def tasks():
    """Some pairs of each task, every 27th, or as many as STS7_EVERY says: 1 for all, in ten minutes."""
    return [
        replace(
            task,
            sentence1=task.sentence1[::EVERY],
            sentence2=task.sentence2[::EVERY],
            score=task.score[::EVERY],
            subset=task.subset[::EVERY],
        )
        for task in read_suite(SENTEVAL, None).sts
    ]


@pytest.fixture(scope="module")
def ours(forms, tasks):
    encoder = SentenceEncoder.load(forms / "checkpoint")
    scores = {task.name: round(evaluate_sts(encoder, [task]).tasks[task.name].values["all"], 2) for task in tasks}
    assert len(scores) == 7
    bare = SentenceEncoder.load(MINILM)
    (first, *_) = tasks
    assert abs(evaluate_sts(bare, [first]).tasks[first.name].values["all"] - scores[first.name]) > 0.05, (
        "the prompt did nothing"
    )
    return scores


class Through:
    """An encoder that calls another tool."""

    def __init__(self, encode):
        self._encode = encode

    def encode(self, sentences, *, batch_size=64, **_):
        return np.asarray(self._encode(list(sentences), batch_size))


def with_sentence_transformers(folder):
    library = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(str(folder / "sentence-transformers"), trust_remote_code=True, device="cpu")
    return Through(lambda texts, size: model.encode(texts, batch_size=size))


def with_peft(folder):
    peft = pytest.importorskip("peft")
    from transformers import AutoModel, AutoTokenizer

    from cse.model.backbone_files import find_backbone

    place = find_backbone(MINILM).folder
    model = peft.PeftModel.from_pretrained(AutoModel.from_pretrained(place), str(folder / "peft")).eval()
    tokenizer = AutoTokenizer.from_pretrained(place)

    @torch.no_grad()
    def encode(texts, size):
        order = np.argsort([len(text) for text in texts])
        found = np.empty((len(texts), 384), np.float32)
        for start in range(0, len(texts), size):
            rows = order[start : start + size]
            tokens = tokenizer([texts[row] for row in rows], padding=True, truncation=True, return_tensors="pt")
            mask = tokens["attention_mask"].unsqueeze(-1)
            found[rows] = ((model(**tokens).last_hidden_state * mask).sum(dim=1) / mask.sum(dim=1)).numpy()
        return found

    return Through(encode)


@pytest.mark.parametrize("tool", ["onnx", "sentence-transformers", "peft"])
def test_sts_through_other_tools(forms, tasks, ours, tool, record_property):
    opened = {
        "onnx": lambda folder: OnnxEncoder(folder / "onnx", provider="cpu"),
        "sentence-transformers": with_sentence_transformers,
        "peft": with_peft,
    }[tool](forms)
    found = {task.name: round(evaluate_sts(opened, [task]).tasks[task.name].values["all"], 2) for task in tasks}
    record_property("scores", found)
    for name, score in ours.items():
        assert found[name] == pytest.approx(score, abs=0.0101), (name, found, ours)


@pytest.mark.parametrize("form", ["checkpoint", "onnx"])
def test_sts_through_mteb(forms, tasks, ours, form):
    load = SentenceEncoder.load if form == "checkpoint" else OnnxEncoder
    model = MtebEncoder(load(forms / form), "minilm-prompts")
    (published,) = find_tasks(["STSBenchmark"])
    for task in tasks:
        columns = {"sentence1": task.sentence1, "sentence2": task.sentence2, "score": task.score.tolist()}

        class Local(type(published)):
            """MTEB's STS with the pairs of one of ours."""

            def load_data(self, columns=columns, **_):
                self.dataset = datasets.DatasetDict({"test": datasets.Dataset.from_dict(columns)})
                self.data_loaded = True

        found = run_tasks(model, [Local()])["STSBenchmark"]
        assert 100 * found == pytest.approx(ours[task.name], abs=0.0101), task.name
