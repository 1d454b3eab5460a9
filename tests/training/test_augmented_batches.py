"""Rows that augmentation made longer are encoded whole, and each copy has its own template."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cse.settings.train import AugmentSettings
from cse.training.batch import tokenise
from tests.parts import Cut, new_plan, new_template, replan, sentence_encoder
from tests.training.helpers import embed_rows, make_rows

ROWS = np.arange(12)
PLAN = new_plan(learning_rate=0.1, batch_size=12, cut=Cut(3, None))


def rows_of(batch, view):
    """Token ids of a view's rows, in the order of the batch, without padding."""
    found = {}
    for piece in batch.slices:
        for place, number, ids, mask in zip(piece.places, piece.rows.views, piece.ids_BL, piece.mask_BL, strict=True):
            if number == view:
                found[int(place)] = ids[mask == 1].tolist()
    return [found[place] for place in sorted(found)]


def test_rows_that_repetition_made_longer_have_their_noise_too(bert):
    """A template's noise is looked up by the length of the sentence, which may exceed all those of the table."""
    template = new_template("{sentence} {mask}", bert)
    encoder = sentence_encoder(bert, pooler="mask", templates=[template], denoise="always")
    tokenizers = [encoder.tokenizer_of_view(0, training=True)]
    table = tokenise(make_rows(40), "sentences", tokenizers, max_length=24, pad_id=bert.pad_id)
    with torch.no_grad():
        batch = embed_rows(encoder, table, ROWS, replan(PLAN, augment=AugmentSettings(repeat_words=0.99)))
    before = max(int(column.lengths[ROWS].max()) for column in table.columns)
    assert batch.longest - len(encoder.templates[0].ids) > before
    assert batch.projected_XD.isfinite().all()


FIRST, SECOND = "the cat {sentence} reads {mask} slowly", "a {sentence} not {mask} on the old sofa"


@pytest.mark.parametrize("denoise", ["none", "train_only"])
def test_each_copy_has_its_own_template(backbone, denoise):
    """Two templates of different length and tail in one batch give what an encoder of each template gives alone."""
    templates = [new_template(text, backbone) for text in (FIRST, SECOND)]
    alone = [sentence_encoder(backbone, pooler="mask", templates=[one], denoise=denoise) for one in templates]
    encoder = sentence_encoder(backbone, pooler="mask", templates=templates, denoise=denoise)
    data = make_rows(30)

    def table_of(model, count):
        tokenizers = [model.tokenizer_of_view(view, training=True) for view in range(count)]
        return tokenise(data, "sentences", tokenizers, max_length=24, pad_id=backbone.pad_id)

    table = table_of(encoder, 2)
    with torch.no_grad():
        batch = embed_rows(encoder, table, ROWS, PLAN)
        expected = [embed_rows(model, table_of(model, 1), ROWS, PLAN).views[0] for model in alone]
    for view, (template, other) in enumerate(zip(templates, expected, strict=True)):
        for row, found in zip(data["sent0"].to_pylist(), rows_of(batch, view), strict=False):
            words = template.text.format(sentence=row, mask=backbone.tokenizer.id_to_token(*template.mask))
            assert found == backbone.tokenizer.encode(words).ids
        torch.testing.assert_close(batch.views[view], other, atol=1e-5, rtol=1e-5)
    assert (batch.views[0] - batch.views[1]).abs().max() > 0.1
