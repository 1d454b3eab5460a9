"""The adapter under the real ``mteb``, on a task with local data."""

from __future__ import annotations

import datasets
import numpy as np
import pytest
from mteb.models.models_protocols import EncoderProtocol
from mteb.types import PromptType

from cse.data.tasks.kinds import ScoredPairs
from cse.evaluation.mteb_encoder import MtebEncoder, find_tasks, run_tasks
from cse.evaluation.sts import evaluate_sts
from tests.parts import refusal
from tests.tiny import WORDS


@pytest.fixture(scope="module")
def pairs() -> ScoredPairs:
    rng = np.random.default_rng(0)
    first, second = ([" ".join(rng.choice(WORDS, 5)) for _ in range(40)] for _ in range(2))
    return ScoredPairs("own", first, second, rng.uniform(0, 5, 40).round(1))


@pytest.fixture
def task(pairs):
    """MTEB's STSBenchmark with other pairs, which no hub needs to give."""
    (published,) = find_tasks(["STSBenchmark"])

    class Local(type(published)):
        def load_data(self, **_):
            columns = {"sentence1": pairs.sentence1, "sentence2": pairs.sentence2, "score": pairs.score.tolist()}
            self.dataset = datasets.DatasetDict({"test": datasets.Dataset.from_dict(columns)})
            self.data_loaded = True

    return Local()


@pytest.fixture(scope="module")
def encoder(tiny_folders):
    from cse.model.sentence_encoder import SentenceEncoder

    return SentenceEncoder.load(str(tiny_folders["bert"]))


def test_mteb_gives_the_score_of_our_own_protocol(encoder, task, pairs):
    model = MtebEncoder(encoder, "tiny")
    assert isinstance(model, EncoderProtocol)
    found = run_tasks(model, [task])
    ours = evaluate_sts(encoder, [pairs]).tasks["own"].values["all"]
    assert found["STSBenchmark"] == pytest.approx(ours / 100, abs=1e-6)
    assert abs(ours) > 0.1
    assert "did you mean 'STSBenchmark'" in refusal(find_tasks, ["STSBenchmrk"])


def test_queries_and_documents_of_a_search_get_their_task_texts():
    class Remembers:
        texts = {"query": "query: ", "passage": "passage: "}  # noqa: RUF012

        def encode(self, sentences, batch_size, normalize, show_progress_bar, role=None):
            self.role = role
            return np.zeros((len(sentences), 2), np.float32)

    remembers = Remembers()
    model = MtebEncoder(remembers, "x")
    for kind, role in ((PromptType.query, "query"), (PromptType.document, "passage"), (None, None)):
        model.encode([{"text": ["a"]}], prompt_type=kind)
        assert remembers.role == role
