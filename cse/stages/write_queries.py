"""Let a language model write queries for documents: stand-ins that the query side is trained on (`cse prepare`)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import click

from cse.data.documents import read_documents
from cse.data.passages import whole_document
from cse.data.written import FAULTS, INSTRUCTION, clean
from cse.errors import CseError
from cse.files import fingerprint, identity_of_files
from cse.outputs import check_file, publish_file
from cse.process import only_one
from cse.stages.common import SCRATCH

if TYPE_CHECKING:
    from cse.model.writer import Writer

QUERY, DOCUMENT = "query", "document"  # keys of a line
_BLOCK = 1024  # documents that are sorted by length together
_RIVALS = 20_000  # documents, at most, among which a query must find its own
_MODEL, _INSTRUCTION = "--model", "--instruction"


@dataclass(frozen=True)
class Choices:
    """How queries are written.

    Attributes:
        model: folder, hub id or GGUF file.
        instruction: file with it; None: the package's.
        count: queries of a document.
        documents: how many to write for, at most, drawn at random.
        document_tokens: tokens that are read of a document.
        query_tokens: tokens of a query, at most.
        temperature: of the draws; 0: the likeliest tokens, and one query.
        top_k: how many of the likeliest tokens are drawn from.
        batch_size: documents at a time.
        seed: of all draws.
    """

    model: str
    instruction: Path | None = None
    count: int = 2
    documents: int = 2000
    document_tokens: int = 128
    query_tokens: int = 24
    temperature: float = 0.5
    top_k: int = 20
    batch_size: int = 32
    seed: int = 0

    def check(self) -> None:
        """Raise a CseError for several queries that would all be the same."""
        if self.count > 1 and not self.temperature:
            raise CseError(f"--queries {self.count}: temperature 0 writes the same query again; set --temperature 0.5")


@dataclass(frozen=True)
class RoundTrip:
    """Keep a query if a search finds its document among the first.

    Attributes:
        first: how many documents count.
        encoder: model whose vectors and, beside them, words are searched.
    """

    first: int
    encoder: str


def write_queries(source: Path, out: Path, choices: Choices, trip: RoundTrip | None, *, device: str = "auto") -> int:
    """Write a JSONL file of queries and their documents, and return their number.

    What was written is kept in ``.cse`` until the file stands, and not written again: after a kill, or if none was
    usable, the same command goes on, also with another ``trip``.

    Args:
        source: documents, as `data.train_path` for view `documents`.
        out: file to write.
        choices: how queries are written.
        trip: which are kept; None: all that are usable.
        device: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        CseError: something wrong with the documents, model or instruction, or no usable query was written.
        OSError: ``out`` is not writable.
    """
    from cse.model.writer import turns_of

    check_file(out, _is_written)
    choices.check()
    file = choices.instruction or INSTRUCTION
    try:
        instruction = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CseError(f"{_INSTRUCTION} {file}: cannot be read as text ({error})") from None
    turns = turns_of(instruction, f"{_INSTRUCTION} {file}")
    every = list(dict.fromkeys(filter(None, map(whole_document, read_documents(source)))))
    if not every:
        raise CseError(f"{source}: no document with text")
    documents = _drawn(every, choices.documents, choices.seed)
    told = f" of {len(every):,}" if len(documents) < len(every) else ""
    click.echo(f"{source}: {choices.count} queries for each of {len(documents):,}{told} documents", err=True)
    written, draft = _all_written(documents, turns, choices, device)
    kept, faults = clean(written, instruction)
    total = sum(map(len, written.values()))
    for fault in FAULTS:
        if faults[fault]:
            click.echo(f"{faults[fault]:,} of {total:,} left out: {fault}", err=True)
    if trip is not None and kept:
        usable = len(kept)
        kept = _found_again(kept, every, trip, choices.seed)
        if len(kept) < usable:
            click.echo(f"{usable - len(kept):,} left out: own document not among the first {trip.first}", err=True)
    if not kept:
        raise CseError(f"{_MODEL} {choices.model}: no usable query of {total:,}; try a larger model or --instruction")
    with publish_file(out) as target, target.open("w", encoding="utf-8", newline="\n") as stream:
        for query, document in kept:
            stream.write(json.dumps({QUERY: query, DOCUMENT: document}, ensure_ascii=False) + "\n")
    draft.unlink(missing_ok=True)
    return len(kept)


def _drawn(texts: Sequence[str], most: int, seed: int) -> list[str]:
    """Return at most so many texts, in their order."""
    if len(texts) <= most:
        return list(texts)
    return [texts[place] for place in sorted(Random(seed).sample(range(len(texts)), most))]


def _all_written(
    documents: Sequence[str], turns: Sequence[str], choices: Choices, device_wish: str
) -> tuple[dict[str, list[str]], Path]:
    """Return what the model wrote for each document, by this run or earlier ones, and the file that keeps it."""
    from tqdm import tqdm

    from cse.model.writer import Sampling, load_writer
    from cse.training.precision import choose_bf16, choose_device

    device = choose_device(device_wish)
    bf16 = choose_bf16("auto", device)
    facts = {**asdict(choices), "instruction": list(turns), "model": identity_of_files(choices.model), "bf16": bf16}
    draft = SCRATCH / "written" / f"{fingerprint({**facts, 'documents': list(documents)})}.jsonl"
    with only_one(draft.with_suffix(".lock"), f"{draft}: another process writes these queries; wait for it"):
        there = _read_draft(draft)
        writer = load_writer(
            choices.model, turns, most_tokens=choices.document_tokens, device=device, bf16=bf16, option=_MODEL
        )
        sampling = Sampling(choices.count, choices.query_tokens, choices.temperature, choices.top_k)
        done = sum(map(len, there.values()))
        if done:
            click.echo(f"{done:,} documents were done by an earlier run", err=True)
        bar = tqdm(
            total=len(documents), initial=done, desc="writing", unit=" documents", disable=not sys.stderr.isatty()
        )
        found: dict[str, list[str]] = {}
        with bar, draft.open("a", encoding="utf-8") as stream:
            for number, batch in enumerate(_batches(documents, writer, choices.batch_size)):
                texts = there.get(number)
                if texts is None:
                    texts = writer.write(batch, sampling, choices.seed + number)
                    stream.write(json.dumps([number, texts]) + "\n")
                    stream.flush()
                    os.fsync(stream.fileno())
                    bar.update(len(batch))
                found |= zip(batch, texts, strict=True)
    return {document: found[document] for document in documents}, draft


def _read_draft(draft: Path) -> dict[int, list[list[str]]]:
    """Return the finished batches by number; a last line that a killed process cut off is removed."""
    found: dict[int, list[list[str]]] = {}
    whole = 0
    if draft.is_file():
        for line in draft.read_bytes().splitlines(keepends=True):
            with suppress(ValueError):
                number, texts = json.loads(line)
                if line.endswith(b"\n"):
                    found[number], whole = texts, whole + len(line)
                    continue
            break
        os.truncate(draft, whole)
    return found


def _batches(documents: Sequence[str], writer: Writer, size: int) -> Iterator[list[str]]:
    """Yield batches of documents of similar length."""
    for start in range(0, len(documents), _BLOCK):
        block = documents[start : start + _BLOCK]
        lengths = writer.lengths(block)
        order = sorted(range(len(block)), key=lengths.__getitem__)
        for place in range(0, len(order), size):
            yield [block[number] for number in order[place : place + size]]


def _found_again(
    kept: Sequence[tuple[str, str]], documents: Sequence[str], trip: RoundTrip, seed: int
) -> list[tuple[str, str]]:
    """Return the queries whose document a search by vectors and words finds among the first."""
    from cse.evaluation.own_rank import own_ranks
    from cse.model.sentence_encoder import SentenceEncoder
    from cse.runtime.uses import role_for
    from cse.training.collection import unit_vectors

    rivals = list(dict.fromkeys([document for _, document in kept] + _drawn(documents, _RIVALS, seed)))
    number = {document: place for place, document in enumerate(rivals)}
    encoder, bar = SentenceEncoder.load(trip.encoder), sys.stderr.isatty()
    queries, own = [query for query, _ in kept], [number[document] for _, document in kept]
    vectors = unit_vectors(encoder, queries, role_for("query", encoder.texts), bar)
    collection = unit_vectors(encoder, rivals, role_for("document", encoder.texts), bar)
    ranks = own_ranks(queries, rivals, own, vectors, collection)
    return [pair for pair, rank in zip(kept, ranks, strict=True) if rank <= trip.first]


def _is_written(path: Path) -> bool:
    with path.open(encoding="utf-8") as stream:
        try:
            return set(json.loads(stream.readline())) == {QUERY, DOCUMENT}
        except (ValueError, TypeError):
            return False
