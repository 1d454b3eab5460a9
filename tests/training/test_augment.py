"""Augmentations change what they say and nothing else."""

from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from cse.settings.train import AugmentSettings
from cse.training.augment import alteration, cut_features, mask_span, repeat_words
from cse.training.batch import tokenise
from tests.parts import Cut, new_plan, new_template, sentence_encoder
from tests.training.helpers import embed_rows, make_rows

SPECIAL = np.array([1, 2])


@pytest.mark.parametrize(("words", "share", "most"), [(0, 0.3, 0), (1, 0.3, 1), (2, 0.3, 2), (6, 0.3, 2), (10, 0.4, 4)])
def test_words_are_repeated_behind_themselves_a_uniform_number_of_times(words, share, most):
    """Up to the share of the words, up to two where that is less, and special tokens never."""
    rng, ids, added = np.random.default_rng(1), np.array([1, *range(10, 10 + words), 2]), np.zeros(most + 1, int)
    for _ in range(500):
        longer = repeat_words(ids, "paper", largest_share=share, rng=rng, special=SPECIAL)
        counts = Counter(longer.tolist())
        assert counts[1] == counts[2] == 1 and set(counts.values()) <= {1, 2}
        assert [a for a, b in zip(longer, [*longer[1:], -1], strict=True) if a != b] == ids.tolist()
        added[len(longer) - len(ids)] += 1
    assert most == 0 or chisquare(added).pvalue > 0.001


@pytest.mark.parametrize(("length", "most"), [(3, 0), (6, 0), (7, 1), (40, 9), (60, 9)])
def test_repetitions_of_the_released_code(length, most):
    """``randrange(min(10, int(0.32 * length)))`` of the places between first and last token, none where that is 0."""
    rng, ids, added = np.random.default_rng(4), np.array([1, *range(10, 8 + length), 2]), set()
    for _ in range(300):
        longer = repeat_words(ids, "released", largest_share=0.32, rng=rng, special=np.array([11]))
        assert longer[0] == 1 and longer[-1] == 2 and longer[1] != 1 and longer[-2] != 2
        assert sorted(set(longer.tolist())) == sorted(ids.tolist())
        added.add(len(longer) - length)
    assert added == set(range(most + 1))


def test_a_span_of_five_characters_becomes_the_mask():
    rng = np.random.default_rng(3)
    text = "a black cat sleeps"
    for _ in range(100):
        masked = mask_span(text, characters=5, mask_token="[MASK]", rng=rng)
        before, after = map(str.strip, masked.split("[MASK]"))
        assert text.startswith(before) and text.endswith(after)
        assert 5 <= len(text) - len(before + after) <= 7, "blanks beside the span may go"
        assert "[MASK]" in masked.split(), "set off from the words around it"
    assert mask_span("cat", characters=5, mask_token="[MASK]", rng=rng) == "cat"


def test_cut_features_are_the_same_at_all_tokens_of_a_row():
    embedded = torch.randn(4, 5, 20, dtype=torch.float64, requires_grad=True)
    cut = cut_features(embedded, 0.2)
    zero = cut == 0
    assert torch.equal(zero, zero[:, :1].expand_as(zero))
    assert zero[:, 0].sum(dim=1).tolist() == [4] * 4
    assert len(zero[:, 0].unique(dim=0)) == 4, "each row has its own"
    assert torch.equal(cut[~zero], embedded[~zero]), "no rescaling"
    cut.sum().backward()
    assert torch.equal(embedded.grad, (~zero).double())


@pytest.mark.parametrize(("how", "orders"), [("paper", (6, 1)), ("released", (120, 2))])
def test_positions_are_shuffled_but_padding_and_every_second_copy(how, orders):
    """First and last token too as ConSERT's released code does."""
    lengths = (5, 2, 8)
    mask_BL = torch.tensor([[1] * length + [0] * (8 - length) for length in lengths])
    plain_BL = torch.arange(8).expand(3, -1) + 4
    altered = alteration(AugmentSettings(shuffle_tokens=how), torch.tensor([0, 0, 1]))
    seen = [set(), set()]
    for _ in range(1200):
        found_BL = altered.positions(plain_BL, mask_BL)
        assert torch.equal(found_BL.sort(dim=1).values, plain_BL)
        assert torch.equal(found_BL[2], plain_BL[2])
        for row, length in enumerate(lengths[:2]):
            assert torch.equal(found_BL[row, length:], plain_BL[row, length:])
            seen[row].add(tuple(found_BL[row].tolist()))
    assert tuple(map(len, seen)) == orders, "every order of the tokens that move"


ROWS = np.arange(12)
PLAN = new_plan(learning_rate=0.1, batch_size=12, cut=Cut(3, None))


@pytest.mark.parametrize("denoise", ["none", "train_only"])
def test_each_copy_has_its_own_template(backbone, denoise):
    """Two templates of different length and tail in one batch give what an encoder of each template gives alone."""
    texts = "the cat {sentence} reads {mask} slowly", "a {sentence} not {mask} on the old sofa"
    one, other = (new_template(text, backbone) for text in texts)

    def views(*templates):
        encoder = sentence_encoder(backbone, pooler="mask", templates=list(templates), denoise=denoise)
        tokenizers = [encoder.tokenizer_of_view(view, training=True) for view in range(len(templates))]
        table = tokenise(make_rows(30), "sentences", tokenizers, max_length=24, pad_id=backbone.pad_id)
        with torch.no_grad():
            return embed_rows(encoder, table, ROWS, PLAN).views

    first, second = views(one, other)
    torch.testing.assert_close(first, views(one)[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(second, views(other)[0], atol=1e-5, rtol=1e-5)
    assert (first - second).abs().max() > 0.1
