"""Look at what the user has, and choose views, loss and held-out rows for it; what else an adaptation starts from."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cse.adapt.ladder import DOCUMENTS, LABELS, TEXT
from cse.data.checks import check_column, headless, listed
from cse.data.clean import text_key
from cse.data.documents import ANSWER, BODIES, CORPUS, FILES, QUESTION, language_of, read_documents
from cse.data.prepare import given_path
from cse.data.read import (
    TABLES,
    as_stored,
    check_exists,
    contents,
    data_files,
    ending,
    find_data_file,
    open_table,
    text_lines,
)
from cse.data.shape import (
    CATEGORIES,
    TEXTS,
    Row,
    name_in_words,
    pair_columns,
    read_rows,
    sentence_columns,
    triplet_columns,
)
from cse.data.tasks.kinds import LabelledTexts
from cse.data.tasks.read import is_beir, splits_of
from cse.errors import CseError
from cse.evaluation.retrieval import WITH_WORDS
from cse.evaluation.score import CLASS_PROBABILITY
from cse.runtime.tokens import is_blank
from cse.settings import PARAMS_FILE, Settings, load_settings
from cse.settings.load import check_known, check_settings, flatten, set_key, settings_with

HELD_OUT = 0.1  # share of the rows that select the settings; as many are measured where there is no task
DOCUMENT_TOKENS = 128  # a passage of 60 words has about 90
_MOST_ROWS = 20_000  # stand-ins, and so documents, that are trained on
STAND_INS = 6000  # at least, where documents have as many sentences
_PAIRS_ONLY = {"objective.energy_hinge.weight": 0.0, "data.hold_out": HELD_OUT}

# labels ask for more than other rows: longer prompts, moved faster, and a vector of each label's own
_OF_LABELS = {
    "train.distinct_batches": True,
    "train.dev_measure": "MAP",
    "train.batch_size": 64,
    "train.learning_rate": 0.1,
    "prompt.length": 40,
    "objective.label_proxies.weight": 1.0,
}
# batches without two rows of a label would be as small as this: all texts of a label are positives instead
_FEW_LABELS = 32
_OF_FEW_LABELS = {
    "train.distinct_batches": False,
    "objective.nt_xent.weight": 0.0,
    "objective.supervised_contrastive.weight": 1.0,
}
# texts of a label, and in all; of fewer, more are held out to choose and are trained on in the end, and MAP does not
# choose: by it a head and long training would win, which cost accuracy
_ENOUGH_OF_LABEL, _ENOUGH = 12, 400
TO_TRAIN = 4  # texts of a label; of fewer, nothing is trained
TO_TRAIN_AND_MEASURE = 6  # the same where test rows are held out of them too
_DESCRIPTIONS = ("description", "name", "words")  # columns beside labels without texts
_OF_FEW_ROWS = {
    "train.dev_measure": CLASS_PROBABILITY,
    "train.learning_rate": 0.03,
    "data.hold_out": 0.2,
    "data.label_name_rows": True,
}

# documents are searched: queries are trained against all of them, and nothing that stands for a search chooses
_OF_SEARCH: dict[str, Any] = {
    "data.pairs": "stand_ins",
    "data.dev": "own",
    "prompt.side": "query",
    "post.kind": "query_map",
    "objective.energy_hinge.weight": 0.0,
}
# of params.yaml: the backbone, the machine, the form of the bundle and of the user's files; all else is how some run
# trained, or on what
_TAKEN = ("backbone.", "evaluation.", "export.", "train.device", "train.precision", "data.encoding")

_TOLD = {
    "categories": "labelled texts: pairs within a label",
    "sentences": "plain sentences: pairs of those that are among each other's five nearest",
    "documents": "documents: their titles and sentences stand in for queries",
    "pairs": "pairs",
    "triplets": "triplets with hard negatives",
}


@dataclass(frozen=True)
class Found:
    """What was found, and the settings that follow from it.

    Attributes:
        kind: the kind of text, see ``cse.adapt.ladder``: it has its own rungs.
        language: ISO 639-1 code of the text's language; None if it has none that can be told.
        few: labelled texts too few to train on, or names of labels alone.
    """

    kind: str
    told: str
    settings: dict[str, Any]
    language: str | None
    few: LabelledTexts | None = None


@dataclass(frozen=True)
class Reading:
    """How files are read.

    Attributes:
        columns: of labelled texts: text and label; None, and a column that is None: the usual ones.
    """

    columns: Sequence[str | None] | None = None
    encoding: str = "utf-8"
    score_range: tuple[float, float] = (0.0, 5.0)

    def rows(self, file: Path, view: str, tell: Callable[[str], object] = lambda note: None) -> Iterator[Row]:
        """Read the rows of a file."""
        names = [name for name in self.columns or () if name] or None
        return read_rows(file, view, names, self.encoding, self.score_range, tell)

    def answers(self, path: Path) -> bool:
        """Whether a file is a table of questions and answers."""
        return ending(path) in TABLES and {QUESTION, ANSWER} <= set(open_table(path, self.encoding).columns)


def look(
    sources: Sequence[Path],
    *,
    task: Path | None = None,
    labels: Path | None = None,
    judged: Path | None = None,
    reading: Reading = Reading(),
) -> Found:
    """Choose settings for one or more sources, or for labelled texts.

    Args:
        sources: files or folders of text; the first is the main one, unless there are labels.
        labels: labelled texts to train on and, for their test part, to measure.
    """
    if task is not None:
        check_exists(task, "the task")
    several, few, untrained = "", False, None
    if labels is not None:
        source, view, more = _reference(labels), "categories", list(sources)
        if named := _names_alone(source, reading, sources):
            own = _PAIRS_ONLY | {"data.source": "files", "data.view": view, "data.train_path": str(source)}
            told = f"{source}: names of {len({label for _, label in named}):,} labels and no text"
            return Found(LABELS, told, own, None, LabelledTexts(source.stem, [], [], [], [], names=named))
        asked, reading = reading.columns, replace(reading, columns=_labelled_columns(source, reading))
        texts, several = _of_one_label(source, reading)
        counts = Counter(texts.reference_label)
        middle, few = statistics.median(counts.values()), len(counts) < _FEW_LABELS
        few_rows = middle < _ENOUGH_OF_LABEL or counts.total() < _ENOUGH
        if middle < (TO_TRAIN if task is not None or labels.is_dir() else TO_TRAIN_AND_MEASURE):
            untrained = texts
            several = f", {counts.total():,} of {len(counts):,} labels, {middle:g} a label in the median{several}"
        kind = LABELS
        settings = _PAIRS_ONLY | _OF_LABELS | (_OF_FEW_LABELS if few else {}) | (_OF_FEW_ROWS if few_rows else {})
        task = labels if labels.is_dir() else task  # its other part
        if asked and reading.columns:
            settings["data.columns"] = list(reading.columns)
    elif not sources:
        raise CseError("nothing to adapt to: name a file or folder of text, or labelled texts with --labels")
    else:
        source, *more = sources
        check_exists(source, "the source")
        view = view_of_source(source, reading)
        kind = DOCUMENTS if view == "documents" and not reading.answers(source) else TEXT
        settings = _for_search(source, reading.encoding) if kind == DOCUMENTS else _for_rows(view, source, reading)
    if judged is not None:
        settings |= _for_judged(judged, kind)
    language = language_of(_texts(source, view, reading))
    if view == "documents" and language is not None:
        settings["data.language"] = language
    settings |= {"data.source": "files", "data.view": view, "data.train_path": str(source)}
    if task is not None:
        settings["data.task_path"] = str(task)
    if more:
        # the hinge is for triplets alone; further sources have none of the labels that a loss may need
        terms = {"energy_hinge": 0.0} if view == "triplets" else {"nt_xent": 1.0} if few else {}
        settings["data.more"] = _further(more, reading, kind, terms)
    read = f" (columns {', '.join(map(str, reading.columns))})" if reading.columns else ""
    if view in ("sentences", "pairs"):
        several = (_left_out if view == "pairs" else _unread_labels)(find_data_file(source), reading)
    told = "questions and answers" if settings.get("data.pairs") == "question_answer" else _TOLD[view]
    beside = "".join(f"; beside them {path}" for path in more)
    told = "labelled texts" if untrained is not None else told
    return Found(kind, f"{source}{read}: {told}{several}{beside}", settings, language, untrained)


def values_in(params: Path, *, named: bool) -> dict[str, Any]:
    """Return the values of a settings file by key; none where params.yaml, which nobody named, is missing."""
    there = params.exists() or named or params != PARAMS_FILE
    return flatten(load_settings(params, any_view=True).model_dump(mode="json")) if there else {}


def base_settings(
    params: Path, found: Mapping[str, Any], own: Mapping[str, Any], *, named: bool = False
) -> tuple[Settings, str | None]:
    """Return the settings of an adaptation, and in words what the file would have changed in them.

    Args:
        params: the settings file. Of params.yaml the backbone, the machine, the encoding of files and the form of the
            bundle are taken; a file that was named is taken whole, but for its dev measure and the rest of its data.
    """
    file = values_in(params, named=named)
    usual, values = flatten(Settings().model_dump(mode="json")), {**found, **own}

    other = values.get("backbone.name", file.get("backbone.name")) != file.get("backbone.name")

    def takes(key: str) -> bool:
        if other and key.startswith("backbone."):  # revision, length and task texts are those of the file's own
            return False
        if not named or key.startswith("data."):
            return key.startswith(_TAKEN)
        return key != "train.dev_measure"

    changed = {key: value for key, value in file.items() if usual.get(key) != value}
    tree: dict[str, Any] = {}
    for key, value in ({key: value for key, value in changed.items() if takes(key)} | values).items():
        check_known(key)
        set_key(tree, key, value)
    settings = check_settings(tree, where="the settings of an adaptation")
    if "data.dev_path" not in found and given_path(settings.data, "dev_path") is not None:
        settings = settings_with(settings, {"train.dev_measure": own.get("train.dev_measure")})  # its own, or as asked
    left = ", ".join(f"{key} {value}" for key, value in changed.items() if not takes(key) and key not in values)
    if not left:
        return settings, None
    shown = left if len(left) <= 200 else f"{left[:200]}..."
    return settings, f"an adaptation starts from the defaults; not taken from {params}: {shown} (-s sets a value)"


# ---- kinds of text --------------------------------------------------------------------------------------------------


def view_of_source(path: Path, reading: Reading = Reading()) -> str:
    """Return the view of a file or folder, by its layout and columns.

    A table of texts with labels counts as sentences: labels are read where they are asked for.
    """
    check_exists(path, "the source")
    if path.is_dir():
        if as_stored(path / CORPUS).is_file() or is_beir(path):
            return "documents"
        texts = [name for name in contents(path) if ending(name) in FILES]
        tables = [file for file in data_files(path) if ending(file) in TABLES]
        if len(tables) != 1:
            if texts and not tables:
                return "documents" if len(texts) > 1 or ending(texts[0]) != ".txt" else "sentences"
            raise CseError(f"{path}: {len(tables)} tables and {len(texts)} files of text; name one of them")
        path = tables[0]
    if ending(path) not in TABLES:
        return "documents" if ending(path) in FILES and ending(path) != ".txt" else "sentences"
    there = open_table(path, reading.encoding).columns
    if triplet_columns(there):
        return "triplets"
    if pair_columns(there, str(path)):
        return "pairs"
    if ("title" in there and set(BODIES) & set(there)) or {QUESTION, ANSWER} <= set(there):
        return "documents"
    if sentence_columns(there):
        return "sentences"
    raise CseError(
        f"{path}: the columns {listed(there)} are not known; rename them to one of: title,text; question,answer; "
        "text; sent0,sent1; anchor,positive,negative; or prepare the rows yourself (docs/your-own-data.md)"
        f"{headless(there)}"
    )


def _for_rows(view: str, source: Path, reading: Reading) -> dict[str, Any]:
    if view == "sentences":  # nothing of the same making can be held out
        return {"objective.energy_hinge.weight": 0.0, "mine.neighbours": 5, "data.dev": "own"}
    if view == "documents":
        asked = {"data.pairs": "question_answer", "train.distinct_batches": True}
        return _PAIRS_ONLY | asked | {"train.max_length": DOCUMENT_TOKENS}
    if view == "pairs":
        return _PAIRS_ONLY | {"train.distinct_batches": True}
    file = find_data_file(source)
    texts = triplet_columns(open_table(file, reading.encoding).columns) if ending(file) in TABLES else None
    repeats = texts and (len(texts.texts) > 3 or {"pos", "neg", "negatives"} & {*texts.texts})  # a text in many rows
    return {"data.hold_out": HELD_OUT} | ({"train.distinct_batches": True} if repeats else {})


def _for_search(source: Path, encoding: str) -> dict[str, Any]:
    """Return the settings for documents that are searched; refuse those that make no collection.

    Each gives as many stand-ins for queries as it takes to have ``STAND_INS`` of them.
    """
    short = longer = 0
    for document in read_documents(source, encoding=encoding):
        if any(text.strip() for part in document.sections for text in part.paragraphs):
            longer += 1
        else:
            short += bool(document.title.strip())
    if short + longer < 2:
        count = f"{short + longer} document{'s' if not short + longer else ''} with text"
        raise CseError(f"{source}: {count}; to be searched, name a folder or a table of two or more")
    if not longer:
        raise CseError(
            f"{source}: none of the {short:,} documents has more than a title, so no sentence stands in for a query; "
            "give their texts, or adapt to the titles as plain sentences (a .txt file, one a line)"
        )
    settings = _OF_SEARCH | {"data.stand_ins": max(-(-(STAND_INS - short) // longer), 1)}
    # a sample of a large collection teaches as much: half of Cranfield's or CACM's documents cost 0.3 and 1.5 points
    return settings | ({"data.max_rows": _MOST_ROWS} if short + longer > _MOST_ROWS else {})


def _for_judged(judged: Path, kind: str) -> dict[str, Any]:
    """Return the settings for judged queries that choose."""
    if kind != DOCUMENTS:
        raise CseError("--dev-queries: judged queries are for documents, which SOURCE has to name")
    check_exists(judged, "--dev-queries")
    if not judged.is_dir() or not is_beir(judged):
        raise CseError(f"--dev-queries: {judged}: a folder of corpus.jsonl, queries.jsonl and qrels is needed")
    return {"data.dev_path": str(judged), "train.dev_measure": WITH_WORDS}


def _further(paths: Sequence[Path], reading: Reading, kind: str, terms: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return sources beside the main one, with the terms of their loss that differ from its."""
    found: list[dict[str, Any]] = []
    for number, path in enumerate(paths, start=1):
        view, answers = view_of_source(path, reading), reading.answers(path)
        if kind == DOCUMENTS and view not in ("documents", "pairs"):
            raise CseError(
                f"{path}: {view} beside documents; give more documents, or pairs of a query and its document"
            )
        name = "-".join(re.findall("[a-z0-9]+", path.stem.lower()))[:30].strip("-") or "source"
        taken = {one["name"] for one in found}
        entry: dict[str, Any] = {"name": f"{name}-{number}" if name in taken else name, "path": str(path), "view": view}
        if view == "documents" and (kind == DOCUMENTS or answers):
            entry["pairs"] = "question_answer" if answers else "stand_ins"
        if terms and not (view == "triplets" and "energy_hinge" in terms):
            entry["terms"] = dict(terms)
        found.append(entry)
    return found


def _texts(source: Path, view: str, reading: Reading) -> Iterator[str]:
    """Yield the texts of a source as they stand there."""
    if view == "documents":
        for document in read_documents(source, questions=reading.answers(source), encoding=reading.encoding):
            yield document.title
            yield from (paragraph for section in document.sections for paragraph in section.paragraphs)
    else:
        yield from (text for row in reading.rows(find_data_file(source), view) for text in row.texts if text)


def _unread_labels(file: Path, reading: Reading) -> str:
    """Return a hint if a table of plain sentences has a column that may hold their labels."""
    there = open_table(file, reading.encoding).columns if ending(file) in TABLES else ()
    found = next((name for name in CATEGORIES if name in there), None)
    return f"; column {found} is not read: if it holds labels, give the file as --labels" if found else ""


def _left_out(file: Path, reading: Reading) -> str:
    """Return in words how many pairs their labels leave out; refuse pairs of which none is left."""
    notes: list[str] = []
    counts = Counter(row.fault for row in reading.rows(file, "pairs", notes.append))
    left = ", ".join(f"{count:,} {fault}" for fault, count in counts.items() if fault)
    if left and not counts[""]:
        raise CseError(f"{file}: no pair belongs together by its label ({left}); give some that do")
    told = [note for note in notes if note] + ([f"left out of {counts.total():,}: {left}"] if left else [])
    return "".join(f"; {note}" for note in told)


# ---- labels ---------------------------------------------------------------------------------------------------------


def _reference(labels: Path) -> Path:
    """Return the file of labelled texts to train on."""
    check_exists(labels, "--labels")
    splits = splits_of(labels) if labels.is_dir() else None
    if splits is not None:
        return splits["train"]
    if labels.is_file():
        return labels
    there = listed(contents(labels)) or "nothing"
    raise CseError(f"{labels}: labelled texts are a file, or a folder with train.* and test.*; it holds {there}")


def _labelled_columns(file: Path, reading: Reading) -> tuple[str, ...]:
    """Return the columns of text and label: those that were asked for, and the usual ones for the rest."""
    if ending(file) not in TABLES:
        return ()
    asked, there = reading.columns or (None, None), open_table(file, reading.encoding).columns
    found = []
    for name, usual, option in zip(asked, (TEXTS, CATEGORIES), ("--text-column", "--label-column"), strict=True):
        name = name or next((one for one in usual if one in there and one not in asked), None)
        if name is None:
            raise CseError(
                f"{file}: no column {' or '.join(usual)}; the columns are {listed(there)}; give {option}"
                f"{headless(there)}"
            )
        check_column(name, there, str(file), option)
        found.append(name)
    return tuple(found)


def _names_alone(file: Path, reading: Reading, sources: Sequence[Path]) -> list[tuple[str, str]]:
    """Return names and labels of a file that has labels and no texts: a label a line, or with a description."""
    text, label = reading.columns or (None, None)
    if ending(file) in TABLES:
        there = open_table(file, reading.encoding).columns
        label = label or next((one for one in CATEGORIES if one in there), None)
        described = next((one for one in _DESCRIPTIONS if one in there), None)
        if text or label not in there or not {*there} <= {label, described}:
            return []
        rows = read_rows(file, "categories", [described or label, label], reading.encoding)
        found = [(str(row.texts[0] or "") if described else "", row.label) for row in rows if row.label]
    else:
        lines = [line.strip() for line in text_lines(file, reading.encoding)]
        found = [("", line) for line in lines if line]
        if any("\t" in line for line in lines):
            return []
    named = [*dict.fromkeys((name or name_in_words(label), label) for name, label in found)]
    if len({label for _, label in named}) < 2:
        raise CseError(f"{file}: the name of {len(named)} label and no text; give two labels or more, or their texts")
    if sources:
        raise CseError(f"{sources[0]}: nothing is trained from names of labels alone, so leave SOURCE out")
    return named


def _of_one_label(file: Path, reading: Reading) -> tuple[LabelledTexts, str]:
    """Return the texts of one label, and in words what is left out, if anything; refuse what leaves nothing to tell."""
    every = [(row.label, row.texts[0]) for row in reading.rows(file, "categories") if row.label or row.texts[0]]
    known = [(label, text) for label, text in every if label and text and not is_blank(text)]
    counts = Counter(label for label, _ in known)
    if len(counts) < 2:
        found = f"all texts have the label {next(iter(counts))[:40]!r}" if counts else "no text has a label"
        raise CseError(f"{file}: {found}; give texts of two labels or more")
    if max(counts.values()) < 2 and not any(re.search(r"[^\W\d_]", label) for label in counts):
        asked = f" in column {reading.columns[1]}" if reading.columns else ""
        raise CseError(
            f"{file}: none of the {len(counts):,} labels{asked} has two texts, and none is a word; name the right "
            "column with --label-column, or give texts without labels as SOURCE"
        )
    of: dict[bytes, dict[str, str]] = {}
    for label, text in known:
        of.setdefault(text_key(text), {}).setdefault(label, text)
    several = sum(len(texts) > 1 for texts in of.values())
    if several == len(of):
        raise CseError(f"{file}: each of the {several:,} texts has two labels or more; give each text one label")
    labels, texts = zip(*(one for each in of.values() if len(each) == 1 for one in each.items()), strict=True)
    told = f"; texts with two labels or more: {several:,} of {len(of):,}" if several else ""
    if len(known) < len(every):
        told += f"; rows without a text or a label: {len(every) - len(known):,} of {len(every):,}"
    return LabelledTexts(file.stem, [*texts], [*labels], [], []), told
