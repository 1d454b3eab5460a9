"""MLM heads and generators that cannot be had; what they compute: test_terms, test_corruption in ``tests/training``."""

from __future__ import annotations

import numpy as np
import pytest

from cse.errors import CseError
from cse.model.backbone import load_backbone
from cse.model.backbone_files import find_backbone
from cse.model.declared import MINILM
from cse.model.mlm_head import UnigramGenerator, load_generator, load_mlm_head
from tests.parts import refusal
from tests.tiny import make_backbone_folder, make_tokenizer


@pytest.mark.parametrize("name", ["without", MINILM])
def test_a_backbone_without_a_head_is_refused_and_others_are_named(tiny_folders, family, name):
    backbone = load_backbone(find_backbone(str(tiny_folders[family]) if name == "without" else name))
    message = refusal(load_mlm_head, backbone, wanted_by="objective.masked_lm.weight")
    assert message.startswith(f"objective.masked_lm.weight: {backbone.files.name} has no MLM head; ")
    assert "bert-base-uncased" in message
    assert "roberta-large" in message


def test_another_vocabulary_is_refused(bert, tmp_path):
    folder = make_backbone_folder(tmp_path / "other", "bert", head=True)
    tokenizer = make_tokenizer("bert")
    tokenizer.add_tokens(["extra"])
    tokenizer.save(str(folder / "tokenizer.json"))
    message = refusal(load_generator, str(folder), bert, dropout=False)
    assert message.startswith(f"objective.replaced_tokens.generator: {folder} has another vocabulary (")
    assert "take a generator of the same family" in message


def test_a_model_without_a_head_is_refused(bert, tiny_folders):
    with pytest.raises(CseError, match=r"objective.replaced_tokens.generator: .* has no MLM head; models that have"):
        load_generator(str(tiny_folders["bert"]), bert, dropout=False)


def test_where_none_can_be_had_the_unigram_generator_is_offered(bert, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    message = refusal(load_generator, "distilbert/distilbert-base-uncased", bert, dropout=False)
    assert message.startswith("objective.replaced_tokens.generator")
    assert message.endswith("set objective.replaced_tokens.generator: unigram")


def test_the_ends_of_unigram_draws_are_words_of_the_text():
    columns = [np.array([2, 5, 5, 3]), np.array([2, 6, 5, 3]), np.array([], dtype=int)]
    generator = UnigramGenerator(columns, 8, special=(2, 3))
    ends = generator.propose(np.zeros((1, 2), int), np.ones((1, 2), int), np.array([[0.0, 1.0 - 1e-16]]))
    assert set(ends[0].tolist()) <= {5, 6}
