"""The rows, sentences and backbones that the benchmarks run on."""

import numpy as np
import pytest
from torch import device

from benchmarks.floor import weights
from benchmarks.inputs import SHAPES, backbone_folder, lengths_of, rows_of, sentences_of
from benchmarks.train import seconds_per_step
from cse import SentenceEncoder
from cse.errors import CseError
from cse.model.declared import MINILM


def test_random_backbone_has_its_shape_and_mean_pooling():
    with backbone_folder("random:tiny") as folder:
        encoder = SentenceEncoder.load(folder)
        vectors = encoder.encode(["a dog runs", "a cat sleeps"])
    width, inner, layers = (SHAPES["tiny"][key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    assert weights(encoder.backbone.model) == layers * (4 * width**2 + 2 * width * inner)
    assert encoder.pooler == "mean"
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-3
    assert not folder.exists()


def test_rows_and_sentences_of_a_file(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("sent0,sent1,hard_neg\na dog,the dog,a cat\na cat,the cat,a dog\n")
    assert rows_of("triplets", 2, path).to_pylist()[1] == {"sent0": "a cat", "sent1": "the cat", "hard_neg": "a dog"}
    assert rows_of("sentences", 2, path).to_pylist() == [{"sent0": "a dog"}, {"sent0": "a cat"}]
    assert sentences_of(2, path) == ["a dog", "the dog"]
    with pytest.raises(CseError, match="2 rows, but 3 are wanted"):
        rows_of("triplets", 3, path)
    with pytest.raises(CseError, match=r"no file .*did you mean .*rows\.csv"):
        rows_of("triplets", 3, tmp_path / "row.csv")


def test_generated_sentences_are_distinct():
    found = sentences_of(500, None)
    assert len(set(found)) == len(found) == 500


def test_lengths_count_special_tokens_up_to_the_limit():
    with backbone_folder(MINILM) as folder:
        assert lengths_of(["a dog runs", "dog " * 50], folder, 32) == [5, 32]


@pytest.mark.parametrize("view", ["triplets", "sentences"])
def test_our_training_is_timed_in_every_view(view):
    with backbone_folder("random:tiny") as folder:
        seconds = seconds_per_step(rows_of(view, 8 * 11, None), device("cpu"), folder, batch_size=8)
        assert 0 < seconds < 60
        with pytest.raises(CseError, match="too few steps"):
            seconds_per_step(rows_of(view, 8 * 3, None), device("cpu"), folder, batch_size=8)
