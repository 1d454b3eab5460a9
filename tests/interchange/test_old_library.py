"""Files and vectors of transformers 4.2.1, the library of the released code.

``tests/assets/released`` holds two tiny random models over that library's own BERT and RoBERTa, put together as
PromCSE's classes are, and saved by its ``save_pretrained``: one with a prefix table and an MLM head, one with a prefix
through a network. ``vectors.json`` has their embeddings of two rows, one of them padded.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel

from cse.interchange.importing import import_model
from cse.model.sentence_encoder import SentenceEncoder
from tests.parts import embed
from tests.tiny import make_tokenizer

RELEASED = Path(__file__).parents[1] / "assets" / "released"


@pytest.mark.parametrize("pooler", ["cls", "cls_before_pooler"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_file_of_the_old_library_gives_its_vectors(family, pooler, tmp_path, worst):
    source = RELEASED / f"promcse-{family}"
    saved = torch.load(source / "pytorch_model.bin", weights_only=True)
    backbone = AutoModel.from_config(AutoConfig.from_pretrained(source), add_pooling_layer=False)
    frozen = {name.removeprefix(f"{family}."): value for name, value in saved.items() if name.startswith(f"{family}.")}
    frozen.pop("embeddings.position_ids")
    backbone.load_state_dict(frozen)
    backbone.save_pretrained(tmp_path / "backbone")
    make_tokenizer(family).save(str(tmp_path / "backbone/tokenizer.json"))

    done = import_model(source, "promcse", str(tmp_path / "backbone"), tmp_path / "out", pooler=pooler)
    recorded = json.loads((source / "vectors.json").read_text())
    ids_BL = torch.tensor(recorded["ids"])
    encoder = SentenceEncoder.load(tmp_path / "out")
    mask_BL = (ids_BL != encoder.backbone.pad_id).long()
    assert mask_BL.sum() < mask_BL.numel(), "no row is padded"
    with torch.no_grad():
        found = embed(encoder, ids_BL, mask_BL).numpy()
    worst("promcse, transformers 4.2.1", found, recorded[pooler])
    assert ("multiplied out" in "\n".join(done.lines)) == (family == "roberta")
    assert np.abs(np.subtract(recorded["cls"], recorded["cls_before_pooler"])).max() > 0.1
