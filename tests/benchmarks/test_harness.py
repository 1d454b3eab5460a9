"""What the benchmarks count, how contestants are compared, and that peers encode and train what they are said to."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModel

from benchmarks import floor
from benchmarks.encode import measure, parse
from benchmarks.harness import interleave, ratio
from benchmarks.inputs import backbone_folder, rows_of
from benchmarks.peers.training import full_model, prefix_model, train
from benchmarks.queries import BARE
from benchmarks.queries import measure as measure_queries
from benchmarks.queries import parse as parse_queries
from benchmarks.train import seconds_per_step
from cse.evaluation.retrieval import NDCG, WITH_WORDS
from cse.model.backbone_files import find_backbone
from cse.model.declared import MINILM
from tests.data.tasks.files import write_beir
from tests.tiny import WORDS

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("frozen", "backward", "counted"),
    [(True, False, floor.FORWARD), (True, True, floor.FROZEN_STEP), (False, True, floor.FULL_STEP)],
)
def test_flops_per_weight_and_token_are_those_that_torch_counts(frozen, backward, counted):
    """A frozen stack still passes gradients on to its input."""
    model = AutoModel.from_pretrained(find_backbone(MINILM).folder, add_pooling_layer=False).train()
    model.requires_grad_(not frozen)
    embedded = torch.randn(2, 24, model.config.hidden_size, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        found = model(inputs_embeds=embedded).last_hidden_state
        if backward:
            found.sum().backward()
    # short texts: attention's own products, which are not counted, are within two per cent
    assert counter.get_total_flops() / (floor.weights(model) * 2 * 24) == pytest.approx(counted, rel=0.03)


def test_a_ratio_is_of_neighbours_in_time():
    order = []
    rounds = interleave({name: lambda name=name: order.append(name) or float(len(order)) for name in "ab"}, rounds=3)
    assert ("".join(order), rounds) == ("ababab", {"a": [1.0, 3.0, 5.0], "b": [2.0, 4.0, 6.0]})
    # a slow second round slows both, and the ratio stays
    found = ratio([2.0, 20.0, 3.0], [1.0, 10.0, 1.0])
    assert (found.median, found.least, found.most, str(found)) == (2.0, 2.0, 3.0, "2.00 (2.00-3.00)")


@pytest.mark.slow
def test_contestants_in_fp32_agree_and_others_nearly():
    words = ["--backbone", "random:tiny", "--device", "cpu", "--sentences", "30", "--rounds", "1"]
    found = measure(parse([*words, "--peers", "torch-fp32"]))["contestants"]
    peer = found["sentence-transformers torch-fp32"]["facts"]
    assert str(peer["batch_size"]) in peer["texts_per_s"][peer["way"]]
    for name, each in found.items():
        if "fp32" in name:
            assert each["largest_difference"] < 1e-5 and each["alone"] < 1e-5, name
        else:
            assert 1e-5 < each["largest_difference"] < 0.1, name


def test_each_training_is_timed_and_changes_what_it_is_said_to():
    """Ours; prefix tuning by PEFT, whose loss falls; full fine-tuning."""

    def fit(model, rows, **options):
        before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        seconds, losses = train(model, rows, first=1, **options)
        assert seconds > 0
        return {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}, losses

    rows = rows_of("triplets", 8 * 24, None)
    with backbone_folder("random:tiny") as folder:
        assert 0 < seconds_per_step(rows.take([*range(8 * 11)]), CPU, folder, batch_size=8) < 60
        model = prefix_model(folder, CPU, 32, bf16=True)
        again = rows.take([*range(64)] * 10)  # what it can learn is these rows
        changed, losses = fit(model, again, batch_size=64, bf16=True, learning_rate=2e-1, every=1)
        assert changed == {name for name, weight in model.named_parameters() if weight.requires_grad}
        assert len(losses) == 10 and losses[-1] < 0.98 * losses[0]
        changed, _ = fit(full_model(folder, CPU, 32), rows, batch_size=48, bf16=False)
        assert len([name for name in changed if ".layer." in name and not name.endswith("key.bias")]) == 2 * 15


def test_every_query_side_is_measured_beside_the_bare_backbone(tiny_folders, tmp_path, monkeypatch):
    rng = np.random.default_rng(3)
    texts = [" ".join(rng.choice(WORDS[5:], 8)) for _ in range(20)]
    documents = [{"_id": f"d{n}", "title": "", "text": text} for n, text in enumerate(texts[:12])]
    queries = [{"_id": f"q{n}", "text": text} for n, text in enumerate(texts[12:])]
    collection = write_beir(
        tmp_path / "tiny", corpus=documents, queries=queries, test=[(f"q{n}", f"d{n}", 1) for n in range(8)]
    )
    monkeypatch.setattr("cse.training.fit_post._LEAST", 100)
    words = [str(collection), "--seeds", "2", "--splits", "2", "--backbone", str(tiny_folders["bert"])]
    found = measure_queries(parse_queries(words))
    of = found["figures"]["tiny"]
    assert len(of[BARE]) == 1 and len(of["map"]) == len(of["half, map with judged queries"]) == 2
    assert {*of[BARE][0]} == {NDCG, WITH_WORDS}
    assert "tiny, map, no words" in found["table"]
    assert of["map"] != of[BARE] * 2, "a map changes the ranking"
