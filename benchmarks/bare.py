"""The floor of a server: ``OnnxEncoder.encode`` in one process, without a server.

    python -m benchmarks.bare data/bundle

As for 64 clients: 64 texts per call. As for 1 client: one text per call. The texts are those of ``benchmarks.load``.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import count
from pathlib import Path

from benchmarks.mixed_texts import mixed_texts
from cse import OnnxEncoder


def rate(encoder: OnnxEncoder, texts: list[str], size: int, seconds: float, warm_up: float) -> float:
    """Return texts per second of calls with ``size`` texts."""
    begin, done = time.perf_counter(), 0
    measured = False
    for number in count():
        at = number * size % (len(texts) - size + 1)
        encoder.encode(texts[at : at + size])
        done += size
        passed = time.perf_counter() - begin
        if measured and passed >= seconds:
            return done / passed
        if not measured and passed >= warm_up:
            begin, done, measured = time.perf_counter(), 0, True
    raise AssertionError


def main() -> None:
    """Print texts per second by number of texts per call, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 64], help="texts per call; default: 1 64")
    parser.add_argument("--seconds", type=float, default=10.0, help="measured, for each size; default: 10")
    parser.add_argument("--warm-up", type=float, default=2.0, metavar="SECONDS")
    parser.add_argument("--provider", choices=["auto", "cpu", "cuda"], default="auto")
    options = parser.parse_args()
    encoder, texts = OnnxEncoder(options.bundle, provider=options.provider), mixed_texts()
    rates = {size: rate(encoder, texts, size, options.seconds, options.warm_up) for size in options.sizes}
    print(json.dumps({"provider": encoder.provider_note, "texts_per_s": rates}))


if __name__ == "__main__":
    main()
