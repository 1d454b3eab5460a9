"""What held-out rows choose."""

from __future__ import annotations

import pytest

from cse.adapt.ladder import BARE, FULL, FULL_HEAD, HEAD, PROMPTS, PROMPTS_HEAD, QUERY_MAP, QUERY_PROMPTS, Ladder


def ladder(**devs: float | tuple[float | None, ...] | None) -> Ladder:
    made = Ladder()
    for system, found in devs.items():
        for number, dev in enumerate(found if isinstance(found, tuple) else (found,)):
            made.add(system, f"{system}-{42 + number}", dev, seconds=3)
    return made


@pytest.mark.parametrize(
    ("devs", "chosen", "other"),
    [
        ({BARE: 50.0}, BARE, None),
        ({BARE: 50.0, HEAD: 70.0, PROMPTS: 60.0, PROMPTS_HEAD: 69.9}, HEAD, None),
        ({BARE: 50.0, HEAD: 50.0, PROMPTS: 50.0}, BARE, None),  # the cheaper of equal ones
        ({BARE: 50.0, PROMPTS: (40.0, 70.0)}, PROMPTS, None),  # the mean of its seeds
        ({BARE: 60.0, PROMPTS: (40.0, 70.0)}, BARE, None),
        ({HEAD: 70.0, PROMPTS: 60.0, PROMPTS_HEAD: 75.0, FULL: 80.0, FULL_HEAD: 78.0}, FULL, PROMPTS_HEAD),
        ({HEAD: 70.0, PROMPTS: 60.0, PROMPTS_HEAD: 85.0, FULL: 80.0, FULL_HEAD: 83.0}, PROMPTS_HEAD, FULL_HEAD),
        ({BARE: None, PROMPTS: (None, None)}, PROMPTS, None),  # nothing selects
        ({BARE: None, QUERY_MAP: None}, QUERY_MAP, None),
        ({BARE: 50.0, QUERY_MAP: 52.0, QUERY_PROMPTS: 52.0}, QUERY_MAP, None),
        ({BARE: None, PROMPTS: None, FULL: None}, FULL, PROMPTS),
    ],
)  # fmt: skip
def test_the_best_on_held_out_rows_and_of_equal_ones_the_cheaper(devs, chosen, other):
    made = ladder(**devs)
    found = made.chosen()
    assert found.system == chosen
    rest = made.other_kind(found)
    assert (rest and rest.system) == other


def test_the_model_of_the_best_seed_is_the_one_to_ship():
    rung = ladder(prompts=(60.0, 71.5, 71.5)).rungs[PROMPTS]
    assert rung.best == "prompts-43"
    assert ladder(head=80.0, prompts=(60.0, 71.5)).dev_of("prompts-42") == 60.0, "a model's own score, no other's"
    assert str(rung) == "prompts: dev 67.67, mean of 3 seeds, 9 s"
    assert str(ladder(head=None).rungs[HEAD]) == "a head on the bare backbone: no dev score, 3 s"
