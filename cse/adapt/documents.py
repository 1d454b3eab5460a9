"""Documents that are searched: judged queries on them, which choose and are trained on then, and their index."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cse.data.clean import text_key
from cse.data.documents import CORPUS, Document, cut_whole, read_documents, whole_document
from cse.data.hold_out import place_of
from cse.data.prepare import own_tasks
from cse.data.read import TABLES, as_stored, ending
from cse.data.tasks.beir import read_beir, write_beir
from cse.data.tasks.kinds import Retrieval
from cse.errors import CseError
from cse.outputs import Kind, publish_file, publish_folder
from cse.runtime.bundle import read_manifest
from cse.runtime.kept_vectors import KeptVectors
from cse.runtime.uses import role_for
from cse.settings.data import DataSettings

JUDGED = "judged"  # folder, and name of the source
_WEIGHT = 0.5  # of the labelled pairs beside the stand-ins: a third of the steps
_OPTION = "--dev-queries"


@dataclass(frozen=True)
class Judged:
    """Judged queries that choose and are trained on; half of them, if they are measured too.

    Attributes:
        data: group ``data`` of the adaptation; ``dev_path`` names the queries.
    """

    data: DataSettings
    out: Path

    @property
    def folder(self) -> Path:
        """Where they are written."""
        return self.out / JUDGED

    @property
    def _halved(self) -> bool:
        return Path(self.data.task_path).resolve() == Path(self.data.dev_path).resolve()

    def _half(self, part: str) -> Path:
        return self.folder / part / Path(self.data.dev_path).resolve().name

    @property
    def choosing(self) -> dict[str, Any]:
        """Settings with which the queries choose."""
        halves = {"data.dev_path": str(self._half("dev")), "data.task_path": str(self._half("measured"))}
        return halves if self._halved else {}

    @property
    def training(self) -> dict[str, Any]:
        """Settings with which they are trained on, and choose nothing."""
        pairs = {"name": JUDGED, "path": str(self.folder / "pairs.jsonl"), "view": "pairs", "weight": _WEIGHT}
        more = [*(source.model_dump(mode="json") for source in self.data.more), pairs]
        nothing = DataSettings.model_fields["dev_path"].default
        return self.choosing | {"data.more": more, "data.dev_path": nothing, "train.dev_measure": None}

    def write(self) -> str:
        """Write the halves and the pairs of a query and its document; return in words what there is."""
        given = Path(self.data.dev_path)
        task = read_beir(given, given.resolve().name)
        drawn = [not self._halved or place_of(JUDGED, text_key(query)) < 0.5 for query in task.queries]
        dev, rest = ([n for n, one in enumerate(drawn) if one is part] for part in (True, False))
        if self._halved and min(len(dev), len(rest)) < 2:
            raise CseError(
                f"{_OPTION}: {given}: {len(task):,} queries are too few to choose by one half and to measure by the "
                "other; judge more, or leave the option out"
            )
        if not self._halved:
            self._check_apart(task)
        pairs, left_out = self._pairs(task.only(dev))
        with publish_folder(self.folder, Kind.JUDGED) as folder:
            for name, half in (("dev", dev), ("measured", rest)) if self._halved else ():
                write_beir(task.only(half), folder / name / self._half(name).name)
            text = "".join(json.dumps({"sent0": q, "sent1": d}, ensure_ascii=False) + "\n" for q, d in pairs)
            (folder / "pairs.jsonl").write_text(text, encoding="utf-8", newline="\n")
        told = f"{len(dev):,} judged queries choose, and are trained on then ({len(pairs):,} pairs)"
        if left_out:
            told += f"; {left_out:,} judgements of documents that are not among yours left out"
        if self._halved:
            told += f"; the other {len(rest):,} of {given} are measured, drawn by a hash of their text"
        return told

    def _pairs(self, task: Retrieval) -> tuple[list[tuple[str, str]], int]:
        """Return each query with each of its relevant documents, and how many of these are not in the collection."""
        known = {whole_document(document) for _, document in documents_of(self.data)}
        judgements = zip(task.query.tolist(), task.document.tolist(), task.relevance.tolist(), strict=True)
        found = [
            (task.queries[query], cut_whole(task.documents[document]))
            for query, document, grade in judgements
            if grade > 0 and document >= 0
        ]
        there = [pair for pair in found if pair[1] in known]
        if len(there) < len(found) / 2:
            raise CseError(
                f"{_OPTION}: {self.data.dev_path}: {len(found) - len(there):,} of {len(found):,} judged documents are "
                f"not among those of {self.data.train_path}; give queries that were judged on these documents"
            )
        return there, len(found) - len(there)

    def _check_apart(self, task: Retrieval) -> None:
        measured = (one for one in own_tasks(self.data) if isinstance(one, Retrieval))
        texts = {text_key(text) for one in measured for text in one.queries}
        both = sum(text_key(text) in texts for text in task.queries)
        if both:
            raise CseError(
                f"{_OPTION}: {both:,} of {len(task):,} queries are measured by --task too, and what is measured "
                "chooses nothing; name the same folder for both, and half of it is measured"
            )


def sources_of(data: DataSettings) -> list[Path]:
    """Return where the documents are."""
    return [Path(data.train_path), *(Path(one.path) for one in data.more if one.view == "documents")]


def documents_of(data: DataSettings) -> Iterator[tuple[str, Document]]:
    """Yield the documents with an id: the place of each in its source, whose number stands before it but of the first.

    Of a folder of files that is their path, of others a count.
    """
    for number, source in enumerate(sources_of(data)):
        for document in read_documents(source, encoding=data.encoding):
            yield f"{number}/{document.place}" if number else str(document.place), document


def index_documents(data: DataSettings, out: Path, kept: KeptVectors | None = None) -> str:
    """Embed the documents as the bundle in a folder embeds them, index them there, and return in words what came of it.

    Documents that are there already stay: whatever was adapted, they keep the bare backbone's vectors. A table is
    indexed as it is, other documents are written as one.
    """
    if find_spec("lancedb") is None:
        return "no index: LanceDB is not installed (pip install 'cse[search]'), then `cse index`"
    from cse.search.corpus import Columns
    from cse.search.index import Choices, index_corpus

    first, *others = sources_of(data)
    corpus, columns = as_stored(first / CORPUS) if first.is_dir() else first, Columns(encoding=data.encoding)
    try:
        if others or ending(corpus) not in TABLES or not corpus.is_file():
            corpus, columns = out / "documents.jsonl", Columns()
            with publish_file(corpus) as target, target.open("w", encoding="utf-8", newline="\n") as stream:
                for name, document in documents_of(data):
                    text = "\n\n".join(text for part in document.sections for text in part.paragraphs)
                    if document.title.strip() or text.strip():
                        row = {"_id": name, "title": document.title, "text": text}
                        stream.write(json.dumps(row, ensure_ascii=False) + "\n")
        texts = read_manifest(out / "bundle").domain.texts
        role = role_for("document", texts)
        role = role if role and texts[role] else None  # as the bare bundle, which an earlier stop may have chosen
        choices = Choices(columns, role, threads=1, kept=kept)
        done = index_corpus(str(corpus), str(out / "index"), str(out / "bundle"), choices)
    except CseError as error:
        return f"no index: {error}"
    return f'{done.documents:,} documents indexed: cse search {out / "index"} "..."'
