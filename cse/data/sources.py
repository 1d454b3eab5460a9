"""Sources of training rows, the main one and further ones: open each, and write its clean rows."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from cse.data.clean import CleaningReport, clean_rows, overlap_keys
from cse.data.hold_out import HoldOut, without
from cse.data.hub import hub_rows
from cse.data.read import find_data_file
from cse.data.row_views import CATEGORIES, DOCUMENTS, arrangement, near_duplicates, own_rows, report_of
from cse.data.sample import SAMPLE, sample_rows
from cse.data.shape import LABELLED, Row, read_rows
from cse.data.store import source_file, write_rows
from cse.errors import CseError
from cse.settings.data import DataSettings

WATCHED = Path("data/raw/more")  # a dependency of the stages in dvc.yaml that prepare
_OWN = re.compile(r"\bdata\.(train_path|view|columns|pairs|max_rows)\b")


@dataclass(frozen=True)
class Source:
    """An open source.

    Attributes:
        settings: the group ``data`` as if this were the only source.
        notes: how they are read, if that is not obvious.
    """

    settings: DataSettings
    report: CleaningReport
    rows: Iterator[Row]
    notes: list[str]

    def write(
        self,
        path: Path,
        held_out: Sequence[str],
        arrange: Callable[[Iterator[Row]], Iterator[Row]] | None,
        *,
        progress: bool,
    ) -> None:
        """Write the clean rows.

        Args:
            arrange: makes other rows out of the clean ones, see ``arrangement``.
            progress: whether to show a progress bar on stderr, if it is a terminal.
        """
        settings = self.settings
        hidden = not (progress and sys.stderr.isatty())
        kept = clean_rows(
            tqdm(self.rows, desc="prepare", unit=" rows", unit_scale=True, disable=hidden, file=sys.stderr),
            self.report,
            max_words=settings.max_words,
            drop_duplicates="duplicates" in settings.drop,
            held_out=overlap_keys(held_out),
            drop_held_out="evaluation_overlap" in settings.drop,
            max_rows=settings.max_rows,
            seed=settings.seed,
            near=near_duplicates(settings, held_out),
            arrange=arrange,
        )
        write_rows(path, settings.rows, kept, grouped=settings.grouped)


def open_source(settings: DataSettings) -> Source:
    """Open the main source."""
    notes: list[str] = []
    name, rows = _open(settings, notes.append)
    return Source(settings, report_of(settings, name), rows, [f"{name}: {note}" for note in notes if note])


def open_more(settings: DataSettings) -> dict[str, Source]:
    """Open the further sources, by name."""
    found = {}
    for source in settings.more:
        with _named(source.name):
            found[source.name] = open_source(settings.of(source))
    return found


def write_more(
    sources: dict[str, Source], folder: Path, held_out: Sequence[str], main: object, *, progress: bool
) -> dict[str, Any]:
    """Write the clean rows of the further sources and return their reports by name, as JSON values.

    Args:
        sources: from ``open_more``.
        main: arrangement of the main source, read to its end; rows with a text that it held out are dropped.
    """
    reports = {}
    for name, source in sources.items():
        arrange = arrangement(source.settings, source.report, held_out=0)
        if isinstance(main, HoldOut):
            arrange = without(main, source.report, arrange)
        with _named(name):
            source.write(folder / source_file(name), held_out, arrange, progress=progress)
        made = {"made_from": source.settings.made_from} if source.settings.made_from else {}
        reports[name] = {"view": source.settings.rows, **made, **source.report.as_dict()}
    return reports


def unwatched(settings: DataSettings) -> list[str]:
    """Return a note for each further source whose changes DVC cannot see."""
    return [
        f"data.more.{source.name}: `dvc repro` does not notice changes of {source.path}; it watches {WATCHED}"
        for source in settings.more
        if not Path(source.path).resolve().is_relative_to(WATCHED.resolve())
    ]


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Name a further source's own settings in errors, in place of those of the main source."""
    try:
        yield
    except CseError as error:
        told = _OWN.sub(lambda key: f"data.more.{name}.{key[1].removeprefix('train_')}", str(error))
        raise CseError(told if f"data.more.{name}" in told else f"data.more.{name}: {told}") from None


def _open(settings: DataSettings, tell: Callable[[str], object]) -> tuple[str, Iterator[Row]]:
    """Return the name of a source (without its folder) and its rows."""
    if settings.view == DOCUMENTS or (settings.view == CATEGORIES and settings.source == "sample"):
        return own_rows(settings)
    if settings.source == "sample":
        labelled = settings.view == LABELLED
        return SAMPLE, (
            Row(number, texts[:-1], texts[-1]) if labelled else Row(number, texts)
            for number, texts in enumerate(sample_rows(settings.view), start=1)
        )
    lowest, highest = settings.score_range
    if settings.source == "hub":
        rows = hub_rows(
            settings.hub_id,
            settings.view,
            file=settings.hub_file,
            revision=settings.hub_revision,
            columns=settings.columns,
            encoding=settings.encoding,
            score_range=(lowest, highest),
            tell=tell,
        )
        return f"{settings.hub_id}/{settings.hub_file}", rows
    path = find_data_file(Path(settings.train_path), "data.train_path")
    return path.name, read_rows(path, settings.view, settings.columns, settings.encoding, (lowest, highest), tell)
