"""Judged queries of the user's own: they choose, then they are trained on; half of those that are measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cse.data.clean import text_key
from cse.data.documents import cut_whole, read_documents, whole_document
from cse.data.hold_out import place_of
from cse.data.prepare import own_tasks
from cse.data.tasks.beir import read_beir, write_beir
from cse.data.tasks.kinds import Retrieval
from cse.errors import CseError
from cse.outputs import Kind, publish_folder
from cse.settings.data import DataSettings

JUDGED = "judged"  # folder, and name of the source
_PAIRS = "pairs.jsonl"
_WEIGHT = 0.5  # of the labelled pairs beside the stand-ins: a third of the steps
_OPTION = "--dev-queries"


@dataclass(frozen=True)
class Judged:
    """Judged queries that choose and are trained on.

    Attributes:
        settings: group ``data`` of the adaptation; ``dev_path`` names the queries.
    """

    settings: DataSettings
    out: Path

    @property
    def folder(self) -> Path:
        """Where they are written."""
        return self.out / JUDGED

    @property
    def _given(self) -> Path:
        return Path(self.settings.dev_path)

    @property
    def _name(self) -> str:
        return self._given.resolve().name

    @property
    def halved(self) -> bool:
        """Whether the queries are those to measure too: half of them are for each."""
        return Path(self.settings.task_path).resolve() == self._given.resolve()

    @property
    def choosing(self) -> dict[str, Any]:
        """Settings with which the queries choose."""
        if not self.halved:
            return {}
        return {"data.dev_path": str(self.folder / "dev" / self._name)} | self._measured

    @property
    def training(self) -> dict[str, Any]:
        """Settings with which they are trained on, and choose nothing."""
        pairs = {"name": JUDGED, "path": str(self.folder / _PAIRS), "view": "pairs", "weight": _WEIGHT}
        more = [*(source.model_dump(mode="json") for source in self.settings.more), pairs]
        nothing = DataSettings.model_fields["dev_path"].default
        return {"data.more": more, "data.dev_path": nothing, "train.dev_measure": None} | self._measured

    @property
    def _measured(self) -> dict[str, Any]:
        return {"data.task_path": str(self.folder / "measured" / self._name)} if self.halved else {}

    def write(self) -> str:
        """Write the halves and the pairs of a query and its document; return in words what there is."""
        task = read_beir(self._given, self._name)
        dev = list(range(len(task)))
        if self.halved:
            dev = [number for number in dev if place_of(JUDGED, text_key(task.queries[number])) < 0.5]
            rest = [number for number in range(len(task)) if number not in set(dev)]
            if min(len(dev), len(rest)) < 2:
                raise CseError(
                    f"{_OPTION}: {self._given}: {len(task):,} queries are too few to choose by one half and to measure "
                    "by the other; judge more, or leave the option out"
                )
        else:
            self._check_apart(task)
        pairs, left_out = self._pairs(task.only(dev))
        with publish_folder(self.folder, Kind.JUDGED) as folder:
            if self.halved:
                write_beir(task.only(dev), folder / "dev" / self._name)
                write_beir(task.only(rest), folder / "measured" / self._name)
            text = "".join(json.dumps({"sent0": q, "sent1": d}, ensure_ascii=False) + "\n" for q, d in pairs)
            (folder / _PAIRS).write_text(text, encoding="utf-8", newline="\n")
        told = f"{len(dev):,} judged queries choose, and are trained on then ({len(pairs):,} pairs)"
        if left_out:
            told += f"; {left_out:,} judgements of documents that are not among yours left out"
        if self.halved:
            told += f"; the other {len(rest):,} of {self._given} are measured, drawn by a hash of their text"
        return told

    def _pairs(self, task: Retrieval) -> tuple[list[tuple[str, str]], int]:
        """Return each query with each of its relevant documents, and how many of these are not in the collection."""
        known = set(self._documents())
        found = [
            (task.queries[query], cut_whole(task.documents[document]))
            for query, document, grade in zip(
                task.query.tolist(), task.document.tolist(), task.relevance.tolist(), strict=True
            )
            if grade > 0 and document >= 0
        ]
        there = [pair for pair in found if pair[1] in known]
        if len(there) < len(found) / 2:
            raise CseError(
                f"{_OPTION}: {self._given}: {len(found) - len(there):,} of {len(found):,} judged documents are not "
                f"among those of {self.settings.train_path}; give queries that were judged on these documents"
            )
        return there, len(found) - len(there)

    def _documents(self) -> Iterator[str]:
        sources = [self.settings.train_path, *(one.path for one in self.settings.more if one.view == "documents")]
        for path in sources:
            yield from map(whole_document, read_documents(Path(path), encoding=self.settings.encoding))

    def _check_apart(self, task: Retrieval) -> None:
        measured = own_tasks(self.settings)
        texts = {text_key(text) for one in measured if isinstance(one, Retrieval) for text in one.queries}
        both = sum(text_key(text) in texts for text in task.queries)
        if both:
            raise CseError(
                f"{_OPTION}: {both:,} of {len(task):,} queries are measured by --task too, and what is measured "
                "chooses nothing; name the same folder for both, and half of it is measured"
            )
