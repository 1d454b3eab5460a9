"""Sources of training rows, the main one and further ones: open each, and write its clean rows."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from tqdm import tqdm

from cse.data.clean import CleaningReport, clean_rows
from cse.data.documents import document_rows, read_documents
from cse.data.hold_out import HoldOut
from cse.data.read import find_data_file
from cse.data.sample import SAMPLE, sample_rows
from cse.data.shape import LABELLED, Row, name_in_words, read_rows
from cse.data.store import TRAIN_FILE, source_file, write_rows
from cse.errors import CseError, OfflineError
from cse.settings.data import DataSettings

WATCHED = Path("data/raw/more")  # a dependency of the stages in dvc.yaml that prepare
DOCUMENTS, CATEGORIES = "documents", "categories"
ALONE = "alone_in_label"
_SECONDS = 5.0  # for the hub to answer
_OWN = re.compile(r"\bdata\.(train_path|view|columns|pairs|max_rows)\b")


@dataclass(frozen=True)
class Source:
    """An open source: the group ``data`` as if it were the only one; notes say how its rows are read."""

    name: str  # empty for the main one
    settings: DataSettings
    report: CleaningReport
    rows: Iterator[Row]
    notes: list[str]

    @property
    def file(self) -> str:
        """Name of the file of its rows."""
        return source_file(self.name) if self.name else TRAIN_FILE

    def write(self, folder: Path, evaluation: Sequence[str], hold: HoldOut | None, *, progress: bool) -> dict[str, Any]:
        """Write the clean rows, none with a text of ``evaluation``, and return the report as JSON values.

        ``hold`` holds rows out of the main source; of a further one it drops those with a text it held out.
        """
        settings, report = self.settings, self.report

        def arranged(rows: Iterator[Row]) -> Iterator[Row]:
            if hold is not None:
                rows = hold.apart(rows, report) if self.name else hold(rows)
            if settings.view != CATEGORIES:
                return rows
            return pairs_within_labels(rows, report, seed=settings.seed, names=settings.label_name_rows)

        hidden = not (progress and sys.stderr.isatty())
        rows = tqdm(self.rows, desc="prepare", unit=" rows", unit_scale=True, disable=hidden, file=sys.stderr)
        with _named(self.name):
            kept = clean_rows(rows, report, settings, evaluation, arranged)
            write_rows(folder / self.file, settings.rows, kept, grouped=settings.grouped)
        made = {"made_from": settings.made_from} if settings.made_from else {}
        return {"view": settings.rows, **made, **asdict(report)}


def open_sources(settings: DataSettings) -> list[Source]:
    """Open the main source and the further ones."""
    found = []
    for name, group in [("", settings), *((source.name, settings.of(source)) for source in settings.more)]:
        notes: list[str] = []
        with _named(name):
            shown, rows = _open(group, notes.append)
        told = [f"{shown}: {note}" for note in notes if note]
        found.append(Source(name, group, CleaningReport(shown), rows, told))
    return found


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Name a further source's own settings in errors, in place of those of the main source."""
    try:
        yield
    except CseError as error:
        if not name:
            raise
        told = _OWN.sub(lambda key: f"data.more.{name}.{key[1].removeprefix('train_')}", str(error))
        raise CseError(told if f"data.more.{name}" in told else f"data.more.{name}: {told}") from None


def _open(settings: DataSettings, tell: Callable[[str], object]) -> tuple[str, Iterator[Row]]:
    """Return the name of a source (without its folder) and its rows."""
    view, path = settings.view, Path(settings.train_path)
    if settings.source != "files" and (view == DOCUMENTS or (view == CATEGORIES and settings.source == "sample")):
        raise CseError(f"data.source: {settings.source!r} has no {view}; set data.source: files and data.train_path")
    if view == DOCUMENTS:
        questions = settings.pairs == "question_answer"
        documents = read_documents(path, settings.columns, questions=questions, encoding=settings.encoding)
        rows = document_rows(documents, settings.pairs, language=settings.language, stand_ins=settings.stand_ins)
        return path.resolve().name, rows
    if settings.source == "sample":
        found = enumerate(sample_rows(view), start=1)
        if view == LABELLED:
            return SAMPLE, (Row(number, texts[:-1], texts[-1]) for number, texts in found)
        return SAMPLE, (Row(number, texts) for number, texts in found)
    if settings.source == "hub":
        path = find_data_file(_download(settings), "data.hub_file")
        name = f"{settings.hub_id}/{settings.hub_file}"
    else:
        path = find_data_file(path, "data.train_path")
        name = path.name
    return name, read_rows(path, view, settings.columns, settings.encoding, settings.score_range, tell)


def _download(settings: DataSettings) -> Path:
    """Return a file of a data set on the hub, from the cache alone if the hub does not answer a ping.

    The hub's own library would try again for half a minute.
    """
    import httpx
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub import errors as hub

    hub_id, file, revision = settings.hub_id, settings.hub_file, settings.hub_revision
    what = f"{hub_id}/{file}"
    alone = constants.HF_HUB_OFFLINE
    if not alone:
        try:
            httpx.head(constants.ENDPOINT, timeout=_SECONDS)
        except httpx.TransportError:
            alone = True
    try:
        return Path(hf_hub_download(hub_id, file, repo_type="dataset", revision=revision, local_files_only=alone))
    except Exception as error:
        response = error.response if isinstance(error, hub.HfHubHTTPError) else None
        offline = (hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled, httpx.TransportError)
        away = isinstance(error, (*offline, ConnectionError, TimeoutError))
        if away or (response is not None and response.status_code >= 500):
            raise OfflineError(
                f"{what}: the hub cannot be reached and the cache does not have it; download it elsewhere and use "
                "data.source: files, or set HF_HOME to a cache that has it"
            ) from None
        if isinstance(error, OSError) and response is None and error.errno is not None:  # of a disk
            raise
        told = f"{what}: {type(error).__name__}: {(str(error) or 'no message').splitlines()[0]}"
        keys = "data.hub_id, data.hub_file and data.hub_revision, or request access and log in with `hf auth login`"
        raise CseError(told if response is None else f"{told}; check {keys}") from None


def pairs_within_labels(
    rows: Iterator[Row], report: CleaningReport, *, seed: int, names: bool = False
) -> Iterator[Row]:
    """Yield pairs of texts with the same label, in the order of their first texts.

    Each label's texts are shuffled into a circle, and each text is the anchor of the one that follows it; those alone
    in their label are dropped.

    Args:
        names: whether the name of each label, in words, is one more text of it, unless names differ by numbers alone.
    """
    order = list(rows)
    members: dict[str, list[Row]] = {}
    for row in order:
        members.setdefault(row.label or "", []).append(row)
    if len(members) == 1 and len(order) > 1:
        raise CseError(
            f"{report.source}: one label only ({order[0].label}); pairs within labels need at least 2, so that the "
            "texts of others serve as negatives"
        )
    if names and len({re.sub(r"[\W\d_]+", "", label) for label in members} - {""}) == len(members):
        named = [Row(f"the name of label {label}", (name_in_words(label),), label) for label in members]
        order += named
        for row in named:
            members[row.label or ""].append(row)
    partner: dict[int | str, Row] = {}
    for label, circle in members.items():
        Random(f"cse pairs within labels {seed} {label}").shuffle(circle)
        partner |= {row.line: circle[(place + 1) % len(circle)] for place, row in enumerate(circle)}
    for row in order:
        other = partner[row.line]
        if other is row:
            report.drop(ALONE, row.line)
        else:
            yield Row(row.line, (row.texts[0], other.texts[0]), group=row.label or "")
