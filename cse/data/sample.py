"""A small generated data set, the same on every machine: training rows and scored pairs, without a download.

A frame says who does what where and when; a sentence is one of many ways to word a frame. Two wordings of a frame mean
the same, and the more slots of a frame differ, the less two sentences share. Uses only ``random.Random.random``, whose
sequence Python guarantees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np

from cse.choices import LABELS
from cse.data.sample_grammar import Frame, other, pick, word
from cse.data.sample_words import NUMBERS, TIMES, TRAITS, Topic, topics
from cse.data.tasks.kinds import ScoredPairs

# how the second sentence is derived from the first, and how much of the meaning remains, from 0 to 5
GRADES: dict[str, float] = {
    "reworded": 5.0,
    "shortened": 4.5,
    "other_place_or_time": 4.0,
    "other_agent": 3.2,
    "other_object": 2.8,
    "contradicted": 2.0,
    "same_agent": 1.4,
    "same_topic": 0.8,
    "unrelated": 0.0,
}
_TRIES = 1000
TOPICS = topics()


def sample_rows(view: str, rows: int, seed: int) -> Iterator[tuple[str, ...]]:
    """Yield ``rows`` training rows: a sentence, with an entailed one for pairs and a contradicting one for triplets.

    A ``labelled`` row has a sentence, a second one that is entailed, neutral or contradicting, and its label.

    Args:
        view: ``sentences``, ``pairs``, ``triplets`` or ``labelled``.
        rows: number of rows; their first sentences are distinct.
    """
    if view == "labelled":
        yield from _labelled_rows(rows, seed)
        return
    width = {"sentences": 1, "pairs": 2, "triplets": 3}[view]
    rng = Random(f"cse sample rows {seed}")
    for frame, sentence in _distinct(rng, rows):
        entailed = _shortened(rng, frame) if rng.random() < 0.4 else frame
        row = (sentence, _worded(rng, entailed, sentence), _worded(rng, _contradicted(rng, frame), sentence))
        yield row[:width]


def _labelled_rows(rows: int, seed: int) -> Iterator[tuple[str, ...]]:
    rng = Random(f"cse sample labelled rows {seed}")
    for frame, sentence in _distinct(rng, rows):
        label = pick(rng, LABELS)
        if label == "entailment":
            second = _shortened(rng, frame)
        elif label == "neutral":
            second = _changed(rng, frame, "same_agent")
        else:
            second = _contradicted(rng, frame)
        yield sentence, _worded(rng, second, sentence), label


def sample_pairs(name: str, rows: int, seed: int) -> ScoredPairs:
    """Return ``rows`` scored pairs, graded 0 to 5 by shared meaning; the subsets are the kinds in ``GRADES``.

    Args:
        name: name of the task; other names give other pairs.
    """
    rng = Random(f"cse sample pairs {name} {seed}")
    first, second, score, kinds = [], [], [], []
    for frame, sentence in _distinct(rng, rows):
        kind = pick(rng, tuple(GRADES))
        second_sentence = _worded(rng, _changed(rng, frame, kind), sentence)
        swapped = rng.random() < 0.5
        first.append(second_sentence if swapped else sentence)
        second.append(sentence if swapped else second_sentence)
        score.append(GRADES[kind])
        kinds.append(kind)
    return ScoredPairs(name, first, second, np.array(score, dtype=np.float64), kinds)


def _distinct(rng: Random, rows: int) -> Iterator[tuple[Frame, str]]:
    seen: set[str] = set()
    for _ in range(rows):
        for _ in range(_TRIES):
            frame = _new_frame(rng, pick(rng, TOPICS))
            sentence = word(rng, frame)
            if sentence not in seen:
                break
        seen.add(sentence)
        yield frame, sentence


def _new_frame(rng: Random, topic: Topic) -> Frame:
    action = pick(rng, topic.actions)
    return Frame(
        topic=topic,
        action=action,
        thing=pick(rng, action.objects),
        agent=pick(rng, topic.agents),
        number=NUMBERS[0] if rng.random() < 0.6 else pick(rng, NUMBERS[1:]),
        trait=pick(rng, TRAITS),
        place=pick(rng, topic.places) if rng.random() < 0.7 else None,
        time=pick(rng, TIMES) if rng.random() < 0.6 else None,
        past=rng.random() < 0.35,
    )


def _changed(rng: Random, frame: Frame, kind: str) -> Frame:
    topic = frame.topic
    if kind == "shortened":
        return _shortened(rng, frame)
    if kind == "other_place_or_time":
        if frame.time is None or (frame.place is not None and rng.random() < 0.5):
            return replace(frame, place=other(rng, topic.places, frame.place))
        return replace(frame, time=other(rng, TIMES, frame.time))
    if kind == "other_agent":
        return replace(frame, agent=other(rng, topic.agents, frame.agent), trait=TRAITS[0])
    if kind == "other_object":
        return replace(frame, thing=other(rng, frame.action.objects, frame.thing))
    if kind == "contradicted":
        return _contradicted(rng, frame)
    if kind in ("same_agent", "same_topic"):
        action = other(rng, topic.actions, frame.action)
        agent = frame.agent if kind == "same_agent" else other(rng, topic.agents, frame.agent)
        fresh = _new_frame(rng, topic)
        return replace(fresh, agent=agent, action=action, thing=pick(rng, action.objects))
    if kind == "unrelated":
        return _new_frame(rng, other(rng, TOPICS, topic))
    return frame


def _shortened(rng: Random, frame: Frame) -> Frame:
    """Drop one detail, so that the result follows from the frame."""
    slots = ["trait"] if frame.trait[0] else []
    slots += [slot for slot in ("place", "time") if getattr(frame, slot) is not None]
    slot = pick(rng, slots or ["agent"])
    if slot == "trait":
        return replace(frame, trait=TRAITS[0])
    if slot == "place":
        return replace(frame, place=None)
    if slot == "time":
        return replace(frame, time=None)
    return replace(frame, agent=None, trait=TRAITS[0])


def _contradicted(rng: Random, frame: Frame) -> Frame:
    """Negate the frame or replace its action with the opposite."""
    if frame.action.opposites and rng.random() < 0.6:
        return replace(frame, action=replace(frame.action, verbs=frame.action.opposites))
    return replace(frame, negated=True)


def _worded(rng: Random, frame: Frame, unlike: str) -> str:
    """Word a frame differently from ``unlike``, if possible."""
    sentence = unlike
    for _ in range(20):
        sentence = word(rng, frame)
        if sentence != unlike:
            break
    return sentence
