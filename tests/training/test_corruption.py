"""Masking and corruption: the right shares, the same for a token wherever it stands."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare, kstest
from transformers import AutoModelForMaskedLM

from cse.losses.masked_lm import Vocabulary, mask_tokens, uniform
from cse.losses.shared import PaddedRows
from cse.model.mlm_head import UnigramGenerator, load_generator
from cse.settings.objective import ReplacedTokensSettings
from cse.training.batch import pad_in_groups
from cse.training.corruption import Corrupter
from tests.parts import backbone_of
from tests.training.helpers import make_table
from tests.training.systems import CPU, VOCABULARY

TOKENS = 40_000
HOW, SEED = ReplacedTokensSettings(mask_share=0.3), 9


def numbers(count=TOKENS, *, seed=1, epoch=0, view=0, stream=0, first=0):
    return uniform(seed, epoch, np.array([view]), np.arange(first, first + count)[None], stream)[0]


@given(st.integers(0, 2**31), st.integers(0, 100), st.integers(0, 9), st.integers(0, 4), st.integers(0, 10**9))
@settings(max_examples=20, derandomize=True, deadline=None)
def test_the_hash_is_uniform_and_its_neighbours_are_independent(seed, epoch, view, stream, first):
    place = {"seed": seed, "epoch": epoch, "view": view, "stream": stream, "first": first}
    found = numbers(**place)
    assert found.min() >= 0 and found.max() < 1
    assert kstest(found, "uniform").pvalue > 1e-4
    assert chisquare(np.bincount((found * 64).astype(int), minlength=64)).pvalue > 1e-4
    for changed, by in (*((name, 1) for name in place), ("first", 8)):
        other = numbers(**place | {changed: place[changed] + by})
        assert abs(np.corrcoef(found, other)[0, 1]) < 4.5 / np.sqrt(TOKENS), changed
        cells = (found * 8).astype(int) * 8 + (other * 8).astype(int)
        assert chisquare(np.bincount(cells, minlength=64)).pvalue > 1e-5, changed


def random_row(count=TOKENS):
    """One long row of all ids, special ones too, with padding at its end."""
    ids = np.random.default_rng(0).integers(0, 46, (1, count))
    mask = np.ones_like(ids)
    mask[0, -100:] = 0
    return ids, mask


def masked(ids, mask, *, share=0.15, view=0, seed=1):
    index = np.arange(ids.shape[1])[None]
    return mask_tokens(ids, mask, index, np.array([view]), VOCABULARY, share=share, seed=seed, epoch=0)


def test_a_share_of_the_tokens_is_chosen_and_treated_80_10_10_but_none_that_is_special_padding_or_a_piece():
    ids, mask = random_row()
    changed, chosen = masked(ids, mask)
    open_to_choice = (mask == 1) & ~np.isin(ids, VOCABULARY.special)
    assert binomtest(int(chosen.sum()), int(open_to_choice.sum()), 0.15).pvalue > 1e-3
    assert np.array_equal(changed[~chosen], ids[~chosen])
    before, after = ids[chosen], changed[chosen]
    found = [(after == 45).sum(), ((after != 45) & (after != before)).sum(), (after == before).sum()]
    # a random token is the mask, or the token that stood there, once in 46 times
    shares = np.array([0.8 + 0.1 / 46, 0.1 * 44 / 46, 0.1 + 0.1 / 46])
    assert chisquare(found, shares * chosen.sum()).pvalue > 1e-3
    drawn = after[(after != 45) & (after != before)]
    assert chisquare(np.delete(np.bincount(drawn, minlength=46), [*VOCABULARY.special])).pvalue > 1e-3
    ids[0, ::7] += 64  # ids of trained pieces of a template stand behind the vocabulary
    changed, chosen = masked(ids, mask, share=0.99)
    assert np.array_equal(changed[~chosen], ids[~chosen]) and chosen.sum() > TOKENS / 2
    assert not chosen[np.isin(ids, VOCABULARY.special) | (mask == 0) | (ids >= 64)].any()


@pytest.fixture
def parts(folders, family):
    """A backbone with its vocabulary, a generator, and all rows of a table as one slice with much padding."""
    backbone = backbone_of(folders[family])
    special = (*backbone.special_ids.values(), backbone.pad_id)
    vocabulary = Vocabulary(46, backbone.special_ids["mask"], special)
    generator = load_generator(str(folders[family]), backbone, dropout=False)
    (part,) = pad_in_groups(make_table(backbone, 20), np.arange(20), 1)
    return backbone, vocabulary, generator, part


def masked_logits(folder, part, vocabulary, how, epoch):
    """What transformers makes of the same masked rows, and which tokens were masked."""
    ids, chosen = mask_tokens(
        part.ids_BL, part.mask_BL, part.index_BL, part.views, vocabulary, share=how.mask_share, seed=SEED, epoch=epoch
    )
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(part.mask_BL)).logits
    return logits.double().numpy(), chosen


@pytest.mark.parametrize("changes", [{}, {"positions": "masked"}, {"protect_special": True}], ids=str)
def test_the_likeliest_token_is_taken_but_in_front_and_in_padding(parts, folders, family, changes):
    _, vocabulary, generator, part = parts
    how = HOW.model_copy(update=changes)
    found = Corrupter(how, SEED, vocabulary, generator)(part, CPU, 1).numpy()
    logits, chosen = masked_logits(folders[family], part, vocabulary, how, 1)
    taken = chosen if "positions" in changes else part.mask_BL == 1
    special = np.isin(part.ids_BL, vocabulary.special)
    if "protect_special" in changes:
        taken &= ~special
    taken[:, 0] = False
    assert np.array_equal(found, np.where(taken, logits.argmax(-1), part.ids_BL))
    ends = (part.mask_BL == 1) & special
    assert (found != part.ids_BL)[ends].any() == (not changes), "[SEP] is taken too, unless it is protected"
    assert taken.any() and (part.mask_BL == 0).any()


def test_a_sampled_token_inverts_the_distribution_function(parts, folders, family):
    _, vocabulary, generator, part = parts
    how = HOW.model_copy(update={"choice": "sample"})
    found = Corrupter(how, SEED, vocabulary, generator)(part, CPU, 0).numpy()
    logits, _ = masked_logits(folders[family], part, vocabulary, how, 0)
    share = np.exp(logits - logits.max(-1, keepdims=True))
    upto = (share / share.sum(-1, keepdims=True)).cumsum(-1)
    draw = uniform(SEED, 0, part.views, part.index_BL, 3)
    expected = (upto <= draw[..., None]).sum(-1)
    taken = part.mask_BL == 1
    taken[:, 0] = False
    assert (found[taken] == expected[taken]).mean() > 0.999  # a draw may fall within rounding of a step
    assert len(np.unique(found[taken])) > len(np.unique(logits.argmax(-1)[taken]))


def test_a_unigram_generator_replaces_masked_tokens_by_their_frequency():
    column = np.repeat(np.arange(46), np.arange(46))
    generator = UnigramGenerator([column], 46, VOCABULARY.special)
    ids, mask = random_row()
    part = PaddedRows(np.array([0]), ids, mask, np.array([1]), np.array([0]))
    found = Corrupter(HOW, SEED, VOCABULARY, generator)(part, CPU, 0).numpy()
    _, chosen = masked(ids, mask, share=0.3, view=1, seed=SEED)
    assert np.array_equal(found[~chosen], ids[~chosen])
    counts = np.bincount(found[chosen], minlength=46)
    expected = np.arange(46.0)
    expected[[*VOCABULARY.special]] = 0
    some = expected > 0
    assert counts[~some].sum() == 0
    assert chisquare(counts[some], expected[some] / expected.sum() * chosen.sum()).pvalue > 1e-3


def test_a_generator_with_dropout_draws_anew_and_one_without_does_not(parts, folders, family):
    backbone, vocabulary, calm, part = parts
    lively = load_generator(str(folders[family]), backbone, dropout=True)
    for generator, same in ((calm, True), (lively, False)):
        first, second = (Corrupter(HOW, SEED, vocabulary, generator)(part, CPU, 0) for _ in range(2))
        assert torch.equal(first, second) == same
