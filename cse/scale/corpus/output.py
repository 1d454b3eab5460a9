"""The output folder: its plan, shards and manifest, and the output of earlier runs."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cse.errors import CseError, nearest
from cse.outputs import check_place
from cse.process import only_one
from cse.scale.corpus.columns import IdType
from cse.scale.corpus.database import TABLE_FOLDER, refuse_foreign
from cse.scale.corpus.model import CorpusModel, model_facts
from cse.scale.corpus.plan import PLAN, Choices, CorpusPlan, difference, is_plan, make_plan, plan_facts
from cse.scale.corpus.sources import Corpus
from cse.storage import DRAFTS, Folder

MANIFEST = "manifest.json"
LOCK = ".cse-lock"
FORMAT = 1
_SHARD = re.compile(r"part-\d{6,}\.parquet")


@dataclass(frozen=True)
class VectorStore:
    """A finished folder of vectors.

    Attributes:
        plan: which rows of the corpus each shard is of.
        rows: how many vectors there are, fewer where texts say nothing.
        queries: identity of its query side then, empty if it had none; None: unknown.
    """

    folder: Folder
    plan: CorpusPlan
    rows: int
    dimension: int
    normalize: bool
    id_type: IdType
    text: bool
    bundle: str
    model: dict[str, Any]
    queries: str | None

    @property
    def role(self) -> str | None:
        """Role in which the rows were embedded, if any."""
        return self.plan.facts.get("role")

    @property
    def id_column(self) -> str | None:
        """Column of the corpus that the ids are from; None: row numbers."""
        return self.plan.facts.get("id_column")


def open_vectors(url: str) -> VectorStore:
    """Open a folder that ``cse embed`` finished."""
    folder = Folder(url)
    names = folder.names()
    if MANIFEST not in names or PLAN not in names:
        if PLAN in names:
            raise CseError(f"{url}: not finished; run the same `cse embed` again to resume")
        near = "" if names or not folder.local else nearest(url, map(str, Path(url).parent.glob("*/")))
        raise CseError(f"{url}: no vectors here ({MANIFEST} is missing){near or '; `cse embed` writes them'}")
    content = folder.read(MANIFEST)
    plan_content = folder.read(PLAN)
    try:
        tree = json.loads(content)
        if tree["format"] != FORMAT:
            raise CseError(f"{folder / MANIFEST}: format {tree['format']!r}, this version reads {FORMAT}; embed again")
        if tree["plan"] != hashlib.sha256(plan_content).hexdigest():
            raise CseError(f"{folder / MANIFEST}: belongs to another {PLAN}; copy the whole folder again")
        model = dict(tree["model"])
        bundle, queries = model.pop("path"), tree.get("queries")
        facts = tree["rows"], tree["dimension"], tree["normalize"], tree["id"]["type"], tree["text"]
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, CseError):
            raise
        raise CseError(f"{folder / MANIFEST}: damaged; copy the whole folder again") from None
    plan = CorpusPlan.from_json(plan_content, folder / PLAN)
    return VectorStore(folder, plan, *facts, bundle, model, queries)


@contextmanager
def only_writer(folder: Folder) -> Iterator[None]:
    """Keep a second run from writing to the same folder; an object store has no locks."""
    _refuse_foreign(folder)
    if not folder.local:
        yield
        return
    place = Path(folder.path)
    with only_one(
        place / LOCK, f"{folder.url}: another `cse embed` or `cse index` writes here; wait for it or use another --out"
    ):
        yield


def open_plan(
    folder: Folder, corpus: Corpus, choices: Choices, model: CorpusModel, *, again: bool
) -> tuple[CorpusPlan, set[str]]:
    """Return the plan of the folder, made now if there is none, and the names of the files already there."""
    names = folder.names()
    facts = json.loads(json.dumps(plan_facts(corpus, choices, model_facts(model))))
    if PLAN in names and not again:
        plan = CorpusPlan.from_json(folder.read(PLAN), folder / PLAN)
        if changed := difference(plan.facts, facts):
            raise CseError(
                f"{folder.url}: made from different input: {changed}; use another --out, or --again to start over"
            )
        folder.create()
        return plan, names
    plan = make_plan(corpus, choices, facts, model.check_domain)  # may fail, so run it before deleting anything
    if again:
        _clear(folder, names)
    folder.create()
    folder.write(PLAN, plan.to_json())
    return plan, set()


def finish(folder: Folder, plan: CorpusPlan, model: CorpusModel) -> None:
    """Check that every shard is there and write the manifest."""
    import pyarrow.parquet as pq

    there = folder.names()
    lost = [piece.shard for piece in plan.pieces() if piece.shard not in there]
    if lost:
        raise CseError(f"{folder / lost[0]}: has disappeared since it was written; run the same command again")
    rows = 0
    for piece in plan.pieces():
        with folder.open(piece.shard) as file:
            rows += pq.ParquetFile(file).metadata.num_rows
    facts = plan.facts
    if not rows and facts.get("id_column") is None:  # with ids, they may be what an update takes away
        raise CseError(f"{facts['files'][0][0]}: no text says anything; name another column (--text-column)")
    tree = {
        "format": FORMAT,
        "rows": rows,
        "shards": len(plan.spans),
        "dimension": model.dimension,
        "normalize": facts["normalize"],
        "id": {"column": facts.get("id_column"), "type": plan.id_type},
        "text": facts["keep_text"],
        "model": {"path": model.name, **facts["model"]},
        "queries": model.queries,
        "plan": hashlib.sha256(plan.to_json()).hexdigest(),
    }
    folder.write(MANIFEST, (json.dumps(tree, indent=2) + "\n").encode())


def check_vectors(path: Path) -> None:
    """Refuse to delete a folder that holds files that ``cse embed`` and ``cse index`` did not write."""
    _refuse_foreign(Folder(str(path)))
    refuse_foreign(Folder(str(path)))


def _refuse_foreign(folder: Folder) -> None:
    """Raise ``CseError`` if a folder contains files that `cse embed` did not write."""
    foreign = folder.names() - {LOCK, DRAFTS}
    if folder.local:
        check_place(Path(folder.path))
    if PLAN in foreign and is_plan(folder.read(PLAN)):
        ours = {MANIFEST, PLAN, TABLE_FOLDER}
        foreign = {name for name in foreign - ours if not _SHARD.fullmatch(name)}
    if foreign:
        raise CseError(
            f"{folder.url}: holds files that `cse embed` did not put there ({min(foreign)}); use another --out "
            "or move them away"
        )


def _clear(folder: Folder, names: set[str]) -> None:
    """Delete the output of an earlier run; the plan last, because it marks the other files as ours."""
    refuse_foreign(folder)
    shards = sorted(name for name in names if _SHARD.fullmatch(name))
    for name in (MANIFEST, TABLE_FOLDER, *shards, PLAN):
        if name in names:
            folder.remove(name)
