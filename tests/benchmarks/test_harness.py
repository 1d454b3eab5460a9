"""What the benchmarks count, how contestants are compared, and that peers encode and train what they are said to."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.encode import measure, parse
from benchmarks.inputs import backbone_folder, rows_of
from benchmarks.peers.training import full_model, prefix_model, train
from benchmarks.queries import BARE
from benchmarks.queries import measure as measure_queries
from benchmarks.queries import parse as parse_queries
from benchmarks.train import seconds_per_step
from cse.evaluation.retrieval import NDCG, WITH_WORDS
from tests.data.tasks.files import write_beir
from tests.tiny import WORDS

CPU = torch.device("cpu")


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
