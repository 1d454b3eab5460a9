"""The folder of an adaptation: its ledger, what else is made in it, and how that is deleted: it alone, or nothing."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

from cse.adapt.judged import JUDGED
from cse.adapt.ladder import BARE, FULL, HEAD, HEADED, PROMPTS, QUERY_MAP, QUERY_PROMPTS
from cse.errors import CseError
from cse.files import fingerprint
from cse.ledger import Ledger, OtherPlanError
from cse.outputs import Kind, check_folder, remove_output
from cse.search.table import refuse_foreign
from cse.settings import Settings
from cse.settings.load import flatten
from cse.stages.evaluate import record_folder
from cse.stages.prepare import files_of
from cse.storage import Folder
from cse.training.ready import depends_on

LEDGER, ALL_ROWS = "ledger", "all_rows"  # folders: of records; of models trained on the rows too that chose them
PICKING = "picking"  # folder of the rows beside what picks weights and rates
# of documents: vectors kept for training and measures, a table of those that are none, the index to search
VECTORS, DOCUMENTS, INDEX = "vectors", "documents.jsonl", "index"
BEGUN, PLAN = "adaptation", "plan"  # names of the first records
_ELSEWHERE = "name another folder with --out"
_OTHERWISE = f"{_ELSEWHERE}, or delete this adaptation with --again"

Outputs = dict[str, Kind | None]  # kind of each output; None: a file
_RUN: Outputs = {"train.json": None, "checkpoint": Kind.CHECKPOINT, "plots": Kind.PLOTS}
_KEPT = "[0-9a-f]" * 32  # pattern of the names of kept vectors
_DRAFT = re.compile(r"\.(.+)\.cse-(?:tmp|old)-\w+-\d+-\d+")  # see cse.outputs


def open_ledger(folder: Path, settings: Settings, asked: Mapping[str, Any], *, again: bool) -> Ledger:
    """Return the ledger of an adaptation, a new one in an empty folder.

    Args:
        settings: of the adaptation, with those that follow from the text.
        asked: what the plan follows from; once there is one, a folder planned for something else is refused.
        again: whether to delete another adaptation in place of refusing it.
    """
    text = {"the text": fingerprint({}, files_of(settings.data))}
    of = flatten(settings.model_dump(mode="json")) | text | depends_on(settings)
    ledger = Ledger(folder / LEDGER, _ELSEWHERE)
    try:
        begun = ledger.check(BEGUN, of, str(folder), _OTHERWISE)
        ledger.check(PLAN, asked, str(folder), _OTHERWISE)
    except OtherPlanError:
        if not again:
            raise
        remove(folder)
        begun = None
    if begun is None and folder.is_dir() and any(folder.iterdir()):
        raise CseError(f"{folder}: holds something else; {_ELSEWHERE}")
    ledger.run(BEGUN, lambda: None, of=of)
    return ledger


def remove(folder: Path) -> None:
    """Delete what an adaptation made in a folder."""
    for path, kind in list(_made(folder, folder, _outputs(Ledger(folder / LEDGER, _ELSEWHERE)))):
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif kind is None:
            shutil.rmtree(path)
        else:
            remove_output(path)
    for parent, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):
            Path(parent).rmdir()


def _outputs(ledger: Ledger) -> Outputs:
    """Return the outputs of the adaptation on record, by their names below its folder."""
    begun, plan = ledger.read(BEGUN), ledger.read(PLAN)
    seeded, tried = [], []
    if begun is not None and plan is not None:
        seeds = range(begun.of["train.seed"], begun.of["train.seed"] + plan.result["seeds"])
        for system, rates in plan.result["rates"].items():
            seeded += [f"{each}-{seed}" for each in (system, HEADED.get(system)) if each for seed in seeds]
            tried += [f"{system}-{rate:g}" for rate in rates]
    models = (BARE, HEAD, QUERY_MAP, *seeded)
    searched: Outputs = {f"{VECTORS}/{_KEPT}.kept": None, DOCUMENTS: None}
    of_models: Outputs = {
        **{f"{LEDGER}/{done} {model}.json": None for done in ("train", "measure", "export") for model in models},
        f"{LEDGER}/prepare.json": None,
        "prepare.json": None,
        "prepared": Kind.PREPARED_DATA,
        f"{LEDGER}/{PICKING}.json": None,
        PICKING: Kind.PREPARED_DATA,
        "mined": Kind.MINED_ROWS,
        "corrupted": Kind.CORRUPTED_ROWS,
        **{f"records/{record_folder(model)}": Kind.RECORD for model in models},
        **{f"runs/{model}/{name}": kind for model in models for name, kind in _RUN.items()},
    }
    return {
        **of_models,
        **{f"{ALL_ROWS}/{name}": kind for name, kind in of_models.items()},
        **{f"{LEDGER}/{name}.json": None for name in (BEGUN, "main measure", PLAN, "choice", JUDGED)},
        **{f"{LEDGER}/time {system}.json": None for system in (PROMPTS, FULL, QUERY_PROMPTS)},
        **{f"{LEDGER}/try {name}.json": None for name in tried},
        "params.yaml": None,
        "summary.txt": None,
        "bundle": Kind.BUNDLE,
        JUDGED: Kind.JUDGED,
        **(searched if begun is not None and begun.of["data.view"] == "documents" else {}),
        "report": Kind.REPORT,
        **{f"trials/{name}/{part}": kind for name in tried for part, kind in _RUN.items()},
    }


def _made(folder: Path, below: Path, outputs: Outputs) -> Iterator[tuple[Path, Kind | None]]:
    """Yield each output below a folder with its kind, drafts of killed writers as None."""
    for path in sorted(below.iterdir()):
        name = path.relative_to(folder)
        draft = _DRAFT.fullmatch(path.name)
        known = _fits(name.with_name(draft[1]) if draft is not None else name, outputs)
        whole = next((each for each in known if each.count("/") == len(name.parts) - 1), None)
        if draft is not None and whole is not None:
            yield path, None
        elif name == PurePath(INDEX) and DOCUMENTS in outputs and path.is_dir() and not path.is_symlink():
            refuse_foreign(Folder(path))
            yield path, None
        elif known and whole is None and draft is None and path.is_dir() and not path.is_symlink():
            yield from _made(folder, path, outputs)
        elif whole is not None and (outputs[whole] is not None or path.is_file()):
            if (kind := outputs[whole]) is not None:
                check_folder(path, kind)
            yield path, kind
        else:
            raise CseError(
                f"{folder}: holds {name}, which `cse adapt` did not put there; move it, or name another --out"
            )


def _fits(name: PurePath, outputs: Outputs) -> list[str]:
    """Return the outputs of which a path is one, or the start of one."""
    depth = len(name.parts)
    parts = {known: known.split("/") for known in outputs}
    return [known for known, of in parts.items() if len(of) >= depth and name.match("/".join(of[:depth]))]
