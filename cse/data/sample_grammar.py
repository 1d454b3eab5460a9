"""Turn a frame (who does what where and when) into one of many English sentences that express it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from cse.data.sample_words import DOUBLED, IRREGULAR, PLURALS, Action, Topic

T = TypeVar("T")


@dataclass(frozen=True)
class Frame:
    """One meaning, as entries of the vocabulary; ``None`` leaves a slot empty."""

    topic: Topic
    action: Action
    thing: tuple[str, ...]
    agent: tuple[str, ...] | None
    number: tuple[str, ...]
    trait: tuple[str, ...]
    place: tuple[str, ...] | None
    time: tuple[str, ...] | None
    past: bool
    negated: bool = False


def word(rng: Random, frame: Frame) -> str:
    """Return one of a frame's wordings, drawn with ``rng``."""
    who, many = _subject(rng, frame)
    verb, _, particle = pick(rng, frame.action.verbs).partition(" ")
    thing = pick(rng, frame.thing)
    things, thing = thing.endswith("+"), thing.removesuffix("+")
    style = rng.random()
    if frame.negated and style > 0.6:
        who, negation = ("nobody" if frame.agent is None else f"no {_noun(rng, frame, plural=False)}"), ""
        many, style = False, 0.0
    else:
        negation = "not " if frame.negated else ""
    if style < 0.7:
        core = f"{who} {_active(verb, particle, many, frame.past, negation)} {thing}"
    elif style < 0.85 or frame.past or frame.negated:
        core = f"{thing} {_passive(verb, particle, things, frame.past, negation)} by {who}"
    else:
        core = f"there {'are' if many else 'is'} {who} who {_active(verb, particle, many, False, '')} {thing}"
    place = pick(rng, frame.place) if frame.place else ""
    time = pick(rng, frame.time) if frame.time else ""
    fronted = ""
    if time and rng.random() < 0.35:
        fronted, time = f"{time}, ", ""
    elif place and rng.random() < 0.15:
        fronted, place = f"{place}, ", ""
    text = " ".join(part for part in (fronted + core, place, time) if part)
    return text[0].upper() + text[1:] + "."


def _subject(rng: Random, frame: Frame) -> tuple[str, bool]:
    count = pick(rng, frame.number)
    noun = _noun(rng, frame, plural=bool(count))
    if count:
        return f"{count} {noun}", True
    if frame.agent is None:
        return "someone", False
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}", False


def _noun(rng: Random, frame: Frame, plural: bool) -> str:
    trait = pick(rng, frame.trait)
    noun = pick(rng, frame.agent) if frame.agent else "person"
    if plural:
        noun = _plural(noun) if frame.agent else "people"
    return f"{trait} {noun}" if trait else noun


def _active(verb: str, particle: str, many: bool, past: bool, negation: str) -> str:
    if past:
        word = f"did not {verb}" if negation else _past(verb)[0]
    else:
        word = f"{'are' if many else 'is'} {negation}{_ing(verb)}"
    return f"{word} {particle}".rstrip()


def _passive(verb: str, particle: str, many: bool, past: bool, negation: str) -> str:
    be = ("were" if many else "was") if past else ("are" if many else "is")
    being = "" if past else "being "
    return f"{be} {negation}{being}{_past(verb)[1]} {particle}".rstrip()


def _plural(noun: str) -> str:
    if noun in PLURALS:
        return PLURALS[noun]
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def _ing(verb: str) -> str:
    if verb in DOUBLED:
        return f"{verb}{verb[-1]}ing"
    return f"{verb[:-1]}ing" if verb.endswith("e") else f"{verb}ing"


def _past(verb: str) -> tuple[str, str]:
    """Return the past tense and past participle."""
    if verb in IRREGULAR:
        return IRREGULAR[verb]
    if verb in DOUBLED:
        word = f"{verb}{verb[-1]}ed"
    elif verb.endswith("e"):
        word = f"{verb}d"
    elif verb.endswith("y") and verb[-2] not in "aeiou":
        word = f"{verb[:-1]}ied"
    else:
        word = f"{verb}ed"
    return word, word


def pick(rng: Random, items: Sequence[T]) -> T:
    """Draw one of the items uniformly."""
    return items[int(rng.random() * len(items))]


def other(rng: Random, items: Sequence[T], item: T | None) -> T:
    """Draw one of the items other than ``item``."""
    return pick(rng, [one for one in items if one != item])
