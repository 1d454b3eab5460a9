"""Vocabulary of the generated sample, from ``sample_words.yaml``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files

from ruamel.yaml import YAML

_WORDS = YAML(typ="safe", pure=True).load(files("cse.data").joinpath("sample_words.yaml").read_text("utf-8"))


@dataclass(frozen=True)
class Action:
    """An action: synonymous verbs, verbs that contradict them, and objects."""

    verbs: tuple[str, ...]
    opposites: tuple[str, ...]
    objects: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Topic:
    """People, places and actions that belong together."""

    name: str
    agents: tuple[tuple[str, ...], ...]
    places: tuple[tuple[str, ...], ...]
    actions: tuple[Action, ...]


def topics() -> tuple[Topic, ...]:
    """Return the topics: each has the keys ``who`` and ``where``; any other is verbs, and its value their objects."""
    return tuple(
        Topic(name, _items(lines["who"]), _items(lines["where"]), tuple(_actions(lines)))
        for name, lines in _WORDS["topics"].items()
    )


def _actions(lines: Mapping[str, str]) -> Iterator[Action]:
    for verbs, objects in lines.items():
        if verbs not in ("who", "where"):
            same, _, opposite = verbs.partition("~")
            yield Action(_ways(same), _ways(opposite), _items(objects))


def _items(text: str) -> tuple[tuple[str, ...], ...]:
    return tuple(map(_ways, text.split(";")))


def _ways(text: str) -> tuple[str, ...]:
    return tuple(way.strip() for way in text.split("/") if way.strip())


TIMES = _items(_WORDS["times"])
TRAITS = (("", ""), ("", ""), *_items(_WORDS["traits"]))  # most people have none
NUMBERS = (("",), *_items(_WORDS["numbers"]))
IRREGULAR = {verb: (_ways(past)[0], _ways(past)[-1]) for verb, past in _WORDS["irregular"].items()}
DOUBLED = frozenset(_WORDS["doubled"].split())
PLURALS: dict[str, str] = _WORDS["plurals"]
