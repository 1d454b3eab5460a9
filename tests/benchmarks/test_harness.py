"""That peers encode and train what they are said to, and that the load generator counts what a server answers."""

import itertools
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch

from benchmarks import encode, load, queries
from benchmarks.inputs import backbone_folder, rows_of
from benchmarks.peers.training import full_model, prefix_model, train
from benchmarks.train import seconds_per_step
from cse.evaluation.retrieval import NDCG, WITH_WORDS
from tests.data.tasks.files import write_beir
from tests.tiny import WORDS

CPU = torch.device("cpu")


@pytest.mark.slow
def test_contestants_in_fp32_agree_and_others_nearly():
    words = ["--backbone", "random:tiny", "--device", "cpu", "--sentences", "30", "--rounds", "1"]
    found = encode.measure(encode.parse([*words, "--peers", "torch-fp32"]))["contestants"]
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
    asked = [{"_id": f"q{n}", "text": text} for n, text in enumerate(texts[12:])]
    judged = [(f"q{n}", f"d{n}", 1) for n in range(8)]
    collection = write_beir(tmp_path / "tiny", corpus=documents, queries=asked, test=judged)
    monkeypatch.setattr("cse.training.fit_post._LEAST", 100)
    words = [str(collection), "--seeds", "2", "--splits", "2", "--backbone", str(tiny_folders["bert"])]
    found = queries.measure(queries.parse(words))
    of = found["figures"]["tiny"]
    assert len(of[queries.BARE]) == 1 and len(of["map"]) == len(of["half, map with judged queries"]) == 2
    assert {*of[queries.BARE][0]} == {NDCG, WITH_WORDS} and "tiny, map, no words" in found["table"]
    assert of["map"] != of[queries.BARE] * 2, "a map changes the ranking"


TEXTS = [f"{'a' * (number % 7)} text {number}" for number in range(200)]


def vector(text: str) -> list[float]:
    return [len(text) / 1000, text.count("a") / 1000, 0.5]


def embeddings(*texts: str) -> str:
    data = [{"object": "embedding", "index": at, "embedding": vector(text)} for at, text in enumerate(texts)]
    return json.dumps({"object": "list", "data": data})


@contextmanager
def serving(answer):
    """A real server; ``answer`` makes status and body of the n-th request, status 0 hangs up without an answer."""
    numbers = itertools.count(1)

    class Handler(BaseHTTPRequestHandler):
        protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

        def do_POST(self):
            text = json.loads(self.rfile.read(int(self.headers["content-length"])))["input"]
            status, body = answer(next(numbers), text)
            self.close_connection = status == 0
            if status:
                self.send_response(status)
                self.send_header("content-length", len(body))
                self.end_headers()  # head and body in two pieces
                self.wfile.write(body.encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found.server_port
        found.shutdown()


@pytest.mark.parametrize(
    ("answer", "errors", "faults"),
    [
        (lambda number, text: (200, embeddings(text)), set(), set()),
        (lambda number, text: ((200, 429, 0)[number % 3], embeddings(text)), {"429", "connection"}, set()),
        (lambda number, text: (200, embeddings(text, text)), set(), {"miscounted"}),
        (lambda number, text: (200, embeddings(text + "!" * 5)), set(), {"wrong"}),
    ],
    ids=["good", "full and hangs up", "two vectors", "other vectors"],
)
def test_what_a_server_answers_is_counted_and_compared(answer, errors, faults):
    references = np.array([vector(text) for text in TEXTS[:: load.CHECK_EVERY]])
    with serving(answer) as port:
        requests, url = load.build_requests(TEXTS, "tiny"), f"http://127.0.0.1:{port}/v1/embeddings"
        found = load.measure(url, requests, references, 1e-3, clients=4, warm_up=0.05, seconds=0.3)
    assert set(found["errors"]) == errors
    assert {name for name in ("miscounted", "wrong") if found[name]} == faults
    assert load.faulty(found) == bool(errors or faults)
    if not errors | faults:
        assert found["requests"] > 20 and found["compared"] > 0 and found["largest_difference"] < 1e-9
        assert found["requests_per_s"] == pytest.approx(found["requests"] / found["seconds"])
