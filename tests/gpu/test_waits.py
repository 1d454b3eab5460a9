"""No step waits for the device: torch tells of every operation that does, and each is counted by its step."""

import warnings
from collections import Counter
from unittest import mock

import pytest
import torch

from cse.model.mlm_head import UnigramGenerator
from cse.settings.objective import ReplacedTokensSettings
from cse.training.batch import Batcher
from cse.training.corruption import Corrupter
from cse.training.loop import REPORT_EVERY
from tests.gpu.base import fit, needs_gpu
from tests.parts import Cut, new_plan
from tests.training.systems import VOCABULARY, make_system

SAID = "called a synchronizing CUDA operation"
EPOCHS = -(-2 * REPORT_EVERY // 5)  # of 40 rows


def waits(system, folder, device, **changes) -> Counter:
    """Return how often each place waited in steps without a report, between the first two reports."""
    found: list[tuple[int, str]] = []
    step = [0]
    stage = Batcher.stage

    def note(message, category, filename, lineno, *_):
        if SAID in str(message):
            found.append((step[0], f"{filename}:{lineno}"))

    def next_step(*given, **named):
        step[0] = named["step"]
        return stage(*given, **named)

    usual = {"learning_rate": 1e-3, "batch_size": 8, "epochs": EPOCHS, "cut": Cut(3, None), "save_seconds": 3600}
    plan = new_plan(**usual | changes)
    with warnings.catch_warnings(), mock.patch.object(Batcher, "stage", next_step):
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            _, state, _ = fit(system, plan, folder, device)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert state.step >= 2 * REPORT_EVERY and found, "a report waits, so there is something to count"
    # not what a report reads, after the last of these
    return Counter(place for number, place in found if REPORT_EVERY <= number < 2 * REPORT_EVERY - 1)


def unigram_source(table):
    """A source of rows corrupted on the fly, without a language model: transformers' models wait for their mask."""
    generator = UnigramGenerator([column.ids for column in table.columns], VOCABULARY.size, VOCABULARY.special)
    return Corrupter(ReplacedTokensSettings(mask_share=0.3, choice="sample"), 42, VOCABULARY, generator)


@needs_gpu
@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", ["promcse", "hinge", "full", "d2cse", "masked_lm", "queue", "denoised", "classifier"])
def test_no_step_waits(folder, device, figure, tmp_path, name, bf16):
    encoder, losses, table = make_system(name, folder, dropout=0.1)
    if name == "d2cse":
        losses.terms["replaced_tokens"].source = unigram_source(table)
    found = waits((encoder, losses, table), tmp_path, device, bf16=bf16)
    places = ", ".join(f"{place} {count}" for place, count in found.most_common(4))
    figure(f"{found.total() / (REPORT_EVERY - 1):g} a step{': ' if places else ''}{places}", found.total())
    assert not found
