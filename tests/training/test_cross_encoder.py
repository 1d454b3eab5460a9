"""A cross-encoder as a second teacher: its scores against the model's own, kept, and averaged with the first's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
)

from cse.errors import CseError
from cse.training.cross_encoder import CrossEncoderTeacher, load_cross_encoder
from tests.tiny import SHAPE, make_tokenizer
from tests.training.test_collection import DOCUMENTS, shares, taught

QUERIES = ["the cat", "a dog runs", "rain"]
SOME = [["the cat sleeps on the mat", "rain"], ["a dog", "two friends"], ["rain on the river", "bread"]]


def make_model(folder, labels=1):
    torch.manual_seed(0)
    shape = SHAPE | {"initializer_range": 0.5, "num_labels": labels, "pad_token_id": 0}
    BertForSequenceClassification(BertConfig(**shape)).save_pretrained(folder)
    special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokenizer = make_tokenizer("bert")
    tokenizer.post_processor = None
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    return str(folder)


def teacher(model, kept, **changes):
    return CrossEncoderTeacher(model, **{"content": "x", "kept": kept, "documents": 2, "share": 0.25} | changes)


def test_scores_are_the_models_logits_of_each_pair(tmp_path):
    folder = make_model(tmp_path / "model")
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    found = teacher(load_cross_encoder(folder, "x"), tmp_path / "kept").scores(QUERIES, SOME)
    assert found.shape == (3, 2) and found.std() > 0.1
    for row, query in enumerate(QUERIES):
        for place, document in enumerate(SOME[row]):
            with torch.no_grad():
                logit = model(**tokenizer(query, document, return_tensors="pt")).logits.item()
            assert found[row, place] == pytest.approx(logit, abs=1e-5)


def test_what_was_scored_once_is_read_the_next_time(tmp_path, monkeypatch):
    monkeypatch.setattr("cse.training.cross_encoder._QUERIES", 2)
    model = load_cross_encoder(make_model(tmp_path / "model"), "x")
    first = teacher(model, tmp_path / "kept").scores(QUERIES, SOME)
    asked = []
    predict = model.predict
    monkeypatch.setattr(model, "predict", lambda pairs, **options: asked.append(pairs) or predict(pairs, **options))
    np.testing.assert_array_equal(teacher(model, tmp_path / "kept").scores(QUERIES, SOME), first)
    assert asked == []
    teacher(model, tmp_path / "kept").scores([*QUERIES, "bread"], [*SOME, ["bread", "book"]])
    assert [len(pairs) for pairs in asked] == [4], "the first two queries were there"
    teacher(model, tmp_path / "kept", content="another").scores(QUERIES, SOME)
    assert [len(pairs) for pairs in asked] == [4, 4, 2]


class ByLength:
    """A teacher that likes long documents."""

    documents, share = 2, 0.25

    def scores(self, queries, documents):
        return np.array([[len(text) for text in some] for some in documents], np.float32)


def test_its_softmax_over_the_first_teachers_best_is_averaged_with_the_firsts():
    pairs, first = taught(own_share=0.0)
    both = taught(own_share=0.0, again=ByLength())[1]
    for row in range(len(pairs.queries)):
        alone = shares(first, row)
        best = np.argsort(-alone)[:2]
        length = np.array([len(DOCUMENTS[place]) for place in best], float)
        score = (length - length.mean()) / (length.std() + 1e-6) / 0.7
        expected = 0.75 * alone
        expected[best] += 0.25 * np.exp(score) / np.exp(score).sum()
        assert shares(both, row) == pytest.approx(expected, abs=1e-5)
    assert both.share.sum(axis=1) == pytest.approx(1)


def test_a_model_that_cannot_teach_is_one_line(tmp_path):
    with pytest.raises(CseError, match=r"^key: cannot load "):
        load_cross_encoder(str(tmp_path), "key")
    with pytest.raises(CseError, match="gives 3 scores of a pair; name one that gives one"):
        load_cross_encoder(make_model(tmp_path / "three", labels=3), "key")
