"""The head is the backbone's own pretrained one, or a clear refusal."""

from __future__ import annotations

import pytest
import torch

from cse.errors import CseError
from cse.model.backbone import load_backbone
from cse.model.backbone_files import find_backbone
from cse.model.declared import MINILM
from cse.model.mlm_head import load_mlm_head
from tests.tiny import make_backbone_folder


@pytest.fixture
def folder(family, tmp_path):
    return make_backbone_folder(tmp_path / "backbone", family, head=True)


@pytest.fixture
def with_head(folder):
    return load_backbone(find_backbone(str(folder)))


def test_tied_and_frozen_by_default_and_whole_when_untied(with_head):
    head = load_mlm_head(with_head, wanted_by="test")
    assert not [name for name, weight in head.named_parameters() if weight.requires_grad]
    table = with_head.model.get_input_embeddings().weight
    hidden = torch.randn(4, 32)
    tied = head(hidden, table)
    head.untie(table)
    assert torch.equal(head(hidden, torch.zeros_like(table)), tied), "the copy decodes, not what is passed"
    assert all(weight.requires_grad for weight in head.parameters())
    assert head.decoder.data_ptr() != table.data_ptr()


@pytest.mark.parametrize("name", ["without", MINILM])
def test_a_backbone_without_a_head_is_refused_and_others_are_named(tiny_folders, family, name):
    backbone = load_backbone(find_backbone(str(tiny_folders[family]) if name == "without" else name))
    with pytest.raises(CseError) as caught:
        load_mlm_head(backbone, wanted_by="objective.masked_lm.weight")
    message = str(caught.value)
    assert message.startswith(f"objective.masked_lm.weight: {backbone.files.name} has no MLM head; ")
    assert "bert-base-uncased" in message
    assert "roberta-large" in message
    assert "\n" not in message
