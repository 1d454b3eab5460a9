"""Embed lines of text with a bundle or a bank, without torch: a minimal consumer. See ``docs/deploy.md``."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, get_args

import numpy as np

from cse.choices import Provider
from cse.errors import CseError, error_line
from cse.runtime.onnx_encoder import OnnxEncoder

CHUNK = 4096  # lines per read, embed and write

EXAMPLES = """examples:
  echo "A cat sleeps." | python deploy/embed.py data/bundle
  python deploy/embed.py data/bundle sentences.txt --out vectors.npy
  python deploy/embed.py data/bank sentences.txt --domain billing
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (see --help)\n")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = _Parser(description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="folder written by `cse export` or `cse bank create`")
    parser.add_argument("text", nargs="?", default="-", help="UTF-8 file, one sentence per line; default: - (stdin)")
    parser.add_argument("--out", type=Path, help="a .npy file (lines, dimension), or JSON lines; default: stdout")
    parser.add_argument("--domain", help="domain of a bank, or auto: the nearest to each line")
    parser.add_argument("--role", help="role of the lines, such as query: its task text, or the query side")
    parser.add_argument("--batch-size", type=int, default=64, help="maximum sentences per batch (default: 64)")
    parser.add_argument("--device", default="auto", choices=get_args(Provider), help="default: auto")
    parser.add_argument("--threads", type=int, help="CPU threads; default: one per usable CPU")
    parser.add_argument("--raw", action="store_true", help="do not scale vectors to unit length")
    return parser.parse_args(arguments)


def chunks(text: str) -> Iterator[list[str]]:
    """Yield the lines of a file or stdin in chunks; an empty line is a sentence too."""
    with open(0 if text == "-" else text, "rb", closefd=text != "-") as stream:
        lines = (line.rstrip("\r\n") for line in io.TextIOWrapper(stream, encoding="utf-8", newline="\n"))
        try:
            while chunk := list(islice(lines, CHUNK)):
                yield chunk
        except UnicodeDecodeError as error:
            raise CseError(f"{text}: not UTF-8 ({error.reason}); convert it to UTF-8") from None


def check(out: Path) -> None:
    """Refuse to replace anything but an earlier output of this script."""
    if os.path.lexists(out) and not out.is_file():
        raise CseError(f"{out}: exists and is not a regular file; choose another name")
    start = b"\x93NUMPY" if out.suffix == ".npy" else b'{"text": '
    if out.exists() and out.stat().st_size > 0:
        with out.open("rb") as stream:
            if stream.read(len(start)) != start:
                raise CseError(f"{out}: exists and is not an earlier output; choose another name or delete it")


@contextmanager
def opened(out: Path | None) -> Iterator[BinaryIO]:
    """Yield a stream to write to; a file is put in place only when complete."""
    if out is None:
        yield sys.stdout.buffer
        sys.stdout.flush()
        return
    draft = out.with_name(f".{out.name}.tmp-{os.getpid()}")
    try:
        with draft.open("wb") as stream:
            yield stream
        draft.replace(out)
    finally:
        draft.unlink(missing_ok=True)


def watched(found: Iterable[list[str]]) -> Iterator[list[str]]:
    """Show a line count on a terminal, if tqdm is installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield from found
        return
    with tqdm(unit=" lines", disable=not sys.stderr.isatty()) as bar:
        for chunk in found:
            yield chunk
            bar.update(len(chunk))


def embed(options: argparse.Namespace) -> None:
    """Embed every line and write the vectors in the same order."""
    if options.out is not None:
        check(options.out)
    encoder = OnnxEncoder(options.bundle, provider=options.device, threads=options.threads)
    settings: dict[str, Any] = {"batch_size": options.batch_size, "normalize": False if options.raw else None}
    settings |= {"domain": options.domain, "role": options.role}
    as_array = options.out is not None and options.out.suffix == ".npy"
    vectors: list[np.ndarray] = []
    with opened(options.out) as stream:
        for chunk in watched(chunks(options.text)):
            found = encoder.encode(chunk, **settings)
            if as_array:
                vectors.append(found)
                continue
            for line, vector in zip(chunk, found.tolist(), strict=True):
                stream.write(json.dumps({"text": line, "embedding": vector}).encode() + b"\n")
            stream.flush()
        if as_array:
            np.save(stream, np.concatenate(vectors or [encoder.encode([], **settings)]))


def main() -> int:
    """Return 0, or 2 after printing a one-line error."""
    try:
        embed(parse())
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (CseError, OSError) as error:
        sys.stderr.write(f"error: {error_line(error)}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
