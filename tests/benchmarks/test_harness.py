"""What the benchmarks run on, count and keep: inputs, FLOPs per weight and token, and how contestants are compared."""

import csv
import json

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModel, BertConfig

from benchmarks import floor
from benchmarks.harness import interleave, keep, ratio
from benchmarks.inputs import SHAPES, backbone_folder, lengths_of, rows_of, sentences_of
from benchmarks.train import seconds_per_step
from cse import SentenceEncoder
from cse.errors import CseError
from cse.model.backbone_files import find_backbone
from cse.model.declared import MINILM


def test_random_backbone_has_its_shape_and_mean_pooling():
    with backbone_folder("random:tiny") as folder:
        encoder = SentenceEncoder.load(folder)
        vectors = encoder.encode(["a dog runs", "a cat sleeps"])
    width, inner, layers = (SHAPES["tiny"][key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    assert floor.weights(encoder.backbone.model) == layers * (4 * width**2 + 2 * width * inner)
    assert encoder.pooler == "mean"
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-3
    assert not folder.exists()


def test_rows_and_sentences_of_a_file_and_generated_ones(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("sent0,sent1,hard_neg\na dog,the dog,a cat\na cat,the cat,a dog\n")
    assert rows_of("triplets", 2, path).to_pylist()[1] == {"sent0": "a cat", "sent1": "the cat", "hard_neg": "a dog"}
    assert rows_of("sentences", 2, path).to_pylist() == [{"sent0": "a dog"}, {"sent0": "a cat"}]
    assert sentences_of(2, path) == ["a dog", "the dog"]
    with pytest.raises(CseError, match="2 rows, but 3 are wanted"):
        rows_of("triplets", 3, path)
    with pytest.raises(CseError, match=r"no file .*did you mean .*rows\.csv"):
        rows_of("triplets", 3, tmp_path / "row.csv")
    found = sentences_of(500, None)
    assert len(set(found)) == len(found) == 500


def test_lengths_count_special_tokens_up_to_the_limit():
    with backbone_folder(MINILM) as folder:
        assert lengths_of(["a dog runs", "dog " * 50], folder, 32) == [5, 32]


@pytest.mark.parametrize("view", ["triplets", "sentences"])
def test_our_training_is_timed_in_every_view(view):
    with backbone_folder("random:tiny") as folder:
        seconds = seconds_per_step(rows_of(view, 8 * 11, None), torch.device("cpu"), folder, batch_size=8)
        assert 0 < seconds < 60
        with pytest.raises(CseError, match="too few steps"):
            seconds_per_step(rows_of(view, 8 * 3, None), torch.device("cpu"), folder, batch_size=8)


ROWS, TOKENS = 2, 24


@pytest.fixture(scope="module")
def model():
    return AutoModel.from_pretrained(find_backbone(MINILM).folder, add_pooling_layer=False).train()


@pytest.mark.parametrize(
    ("frozen", "backward", "counted"),
    [(True, False, floor.FORWARD), (True, True, floor.FROZEN_STEP), (False, True, floor.FULL_STEP)],
)
def test_flops_per_weight_and_token_are_those_that_torch_counts(model, frozen, backward, counted):
    """A frozen stack still passes gradients on to its input."""
    model.requires_grad_(not frozen)
    embedded = torch.randn(ROWS, TOKENS, model.config.hidden_size, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        found = model(inputs_embeds=embedded).last_hidden_state
        if backward:
            found.sum().backward()
    # short texts: attention's own products, which are not counted, are within two per cent
    assert counter.get_total_flops() / (floor.weights(model) * ROWS * TOKENS) == pytest.approx(counted, rel=0.03)


def test_measured_products_have_a_rate_and_leave_tf32_as_it_was():
    before, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, True
    try:
        rates = floor.measure(BertConfig(hidden_size=64, intermediate_size=128), torch.device("cpu"))
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert set(rates) == {"fp32", "bf16"} and all(rate > 1e7 for rate in rates.values())


def test_history_keeps_earlier_runs(tmp_path):
    run = {"date": "2026-01-01", "commit": "abc", "ratios": {"ours / theirs, fp32": 2.0, "share": 0.5}}
    keep("train", run, tmp_path)
    out = keep("train", run | {"ratios": {"ours / theirs, fp32": 3.0}}, tmp_path)
    assert json.loads(out.read_text())["ratios"] == {"ours / theirs, fp32": 3.0}
    with (tmp_path / "history-train.csv").open(newline="") as stream:
        rows = [(row["run"], row["name"], float(row["ratio"])) for row in csv.DictReader(stream)]
    assert rows == [("1", "ours / theirs, fp32", 2.0), ("1", "share", 0.5), ("2", "ours / theirs, fp32", 3.0)]


def test_rounds_are_interleaved():
    order = []

    def contestant(name):
        def run() -> float:
            order.append(name)
            return float(len(order))

        return run

    found = interleave({name: contestant(name) for name in "ab"}, rounds=3)
    assert "".join(order) == "ababab"
    assert found == {"a": [1.0, 3.0, 5.0], "b": [2.0, 4.0, 6.0]}


def test_a_ratio_is_of_neighbours_in_time():
    # a slow second round slows both, and the ratio stays
    found = ratio([2.0, 20.0, 3.0], [1.0, 10.0, 1.0])
    assert (found.median, found.least, found.most) == (2.0, 2.0, 3.0)
    assert str(found) == "2.00 (2.00-3.00)"
    with pytest.raises(ValueError):
        ratio([1.0], [1.0, 2.0])
