"""Build time, size, latency, recall and memory of `cse index` and `cse search`, as an index grows by rows.

    python -m benchmarks.search sentences.txt --model data/bare --sizes 100000 1000000

First, the CPU time of `cse index` over that of the bare encoder: processes that embed the same sentences,
interleaved; of each, the CPU time of one that embeds a single sentence is taken away, which is its start. Then the
indexes. The rows are the file's sentences and, beyond them, the first half of one and the second half of another. A
text's vector is the mean of what the model says of each of its tokens, so that a million take minutes. `cse index`
makes the table, then a process of its own opens it and asks one query after the other: sentences of the file that are
no rows. On a busy machine, look at the CPU time. Memory is the most that a process holds (its resident set; of the
search without the model). Recall is the share of the ten nearest by exact search that the approximate one finds.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer

from benchmarks.harness import facts, interleave, listed, parser_of, ratio, run, say
from cse.errors import CseError
from cse.runtime.bundle import FORMAT, MODEL, TOKENIZER, Manifest
from cse.runtime.domain import DOMAIN_FORMAT, DomainFacts, Shape
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.search.rows import PIECE
from cse.search.table import Mode, SearchTable, open_table

QUERIES, EXACT = 200, 100  # queries, and those that compare every vector
WAYS: tuple[tuple[str, Mode, bool], ...] = (
    ("vectors", "vectors", False), ("words", "words", False), ("hybrid", "hybrid", False),
    ("vectors, exact", "vectors", True), ("hybrid, exact", "hybrid", True),
)  # fmt: skip


def texts(sentences: list[str], count: int) -> Iterator[str]:
    """Yield sentences, and then halves of two of them."""
    yield from islice(sentences, count)
    random = np.random.default_rng(0)
    for one, other in random.integers(0, len(sentences), (max(count - len(sentences), 0), 2)):
        first, second = sentences[one].split(), sentences[other].split()
        yield " ".join(first[: len(first) // 2] + second[len(second) // 2 :])


def token_model(folder: Path, model: str) -> Path:
    """Write a bundle that averages a model's vectors of single tokens, rare ones with more weight."""
    tokenizer = Tokenizer.from_file(str(Path(model) / TOKENIZER))
    tokenizer.no_padding()
    size = tokenizer.get_vocab_size()
    named = [(tokenizer.id_to_token(number) or "").removeprefix("##") for number in range(size)]
    vectors = OnnxEncoder(model, provider="cpu").encode(named, normalize=True)
    # the vocabulary begins with the special tokens and then falls in frequency
    table = (vectors - vectors.mean(axis=0)) * np.log(1 + np.arange(size))[:, None]
    table[[number for number, name in enumerate(named) if name.startswith("[") and name.endswith("]")]] = 0
    folder.mkdir()
    tokenizer.save(str(folder / TOKENIZER))
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["tokens"]),
        helper.make_node("Cast", ["attention_mask"], ["seen"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["seen", "last"], ["column"]),
        helper.make_node("Mul", ["tokens", "column"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "one"], ["sentence_embedding"], keepdims=0),
    ]
    width = table.shape[1]
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, ["b", "l"]) for n in ("input_ids", "attention_mask")]
    outputs = [helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["b", width])]
    arrays = {"table": table.astype(np.float32), "one": np.array([1]), "last": np.array([-1])}
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "small", inputs, outputs, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), str(folder / MODEL))
    facts: dict[str, Any] = {"backbone": "", "pooler": "sum", "normalize": True, "position_shift": 0, "max_length": 128}
    domain = DomainFacts(DOMAIN_FORMAT, "model", **facts, width=width, words=0, hashes={})
    Manifest(FORMAT, 0, domain, Shape("", 0, 0, 0, width, 0, 0)).write(folder)
    return folder


def ask(folder: Path) -> dict[str, Any]:
    """Search for each query in each way; return milliseconds, recall and the peak of memory in MB."""
    table = open_table(str(folder))
    with np.load(folder.with_suffix(".npz")) as arrays:
        queries, vectors = arrays["texts"].tolist(), arrays["vectors"]
    figures: dict[str, Any] = {}
    found: dict[str, list[set[Any]]] = {}
    for way, mode, every in WAYS:
        found[way], own = _ask(table, queries[: EXACT if every else QUERIES], vectors, mode, exact=every)
        figures |= {f"{way}: {name}": value for name, value in own.items()}
    for way in ("vectors", "hybrid"):
        shares = [len(one & other) / len(other) for one, other in zip(found[way], found[f"{way}, exact"], strict=False)]
        figures[f"{way}: recall@10"] = float(np.mean(shares))
    return figures


def _ask(
    table: SearchTable, queries: list[str], vectors: np.ndarray, mode: Mode, *, exact: bool
) -> tuple[list[set[Any]], dict[str, float]]:
    times, nearest = [], []
    cpu = time.process_time()
    for number in [*range(min(3, len(queries))), *range(len(queries))]:  # three to warm up
        start = time.perf_counter()
        (hits,) = table.search([queries[number]], vectors[number][None], 10, mode, exact=exact)
        times.append(1000 * (time.perf_counter() - start))
        nearest.append({hit.id for hit in hits})
    each = 1000 * (time.process_time() - cpu) / len(times)
    half, most = np.quantile(times[3:], [0.5, 0.99])
    status = Path("/proc/self/status").read_text(encoding="utf-8")  # ru_maxrss counts the process before `exec`, too
    peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6
    return nearest[3:], {"p50, ms": half, "p99, ms": most, "CPU time, ms": each, "peak so far, MB": peak}


_BARE = f"""
import sys
from pathlib import Path
from cse.runtime.onnx_encoder import OnnxEncoder
texts = Path(sys.argv[2]).read_text(encoding="utf-8").splitlines()
encoder = OnnxEncoder(sys.argv[1], provider="cpu")
for first in range(0, len(texts), {PIECE}):
    encoder.encode(texts[first : first + {PIECE}])
"""


def cost(*command: object) -> tuple[float, float, float]:
    """Run Python with a command; return its seconds, its CPU seconds and the most memory that it held, in MB."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, *map(str, command)])
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise CseError(f"{' '.join(map(str, command))[:200]}: failed")
    return time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6


def index(corpus: Path, out: Path, model: Path | str) -> tuple[float, float, float]:
    """Return what `cse index` costs."""
    return cost("-m", "cse", "index", corpus, "--out", out, "--model", model, "--device", "cpu")


def over_encoder(work: Path, model: str, sentences: list[str], rounds: int) -> dict[str, Any]:
    """Index sentences and embed them alone, alternately."""
    corpora, tables = {"one": work / "one.txt", "all": work / "all.txt"}, count()
    corpora["one"].write_text(f"{sentences[0]}\n", encoding="utf-8")
    corpora["all"].write_text("\n".join(sentences), encoding="utf-8")
    found = interleave(
        {
            f"index, {name}": lambda at=at: index(at, work / f"table-{next(tables)}", model)[1]
            for name, at in corpora.items()
        }
        | {f"bare, {name}": lambda at=at: cost("-c", _BARE, model, at)[1] for name, at in corpora.items()},
        rounds,
    )
    own = {
        name: [whole - start for whole, start in zip(found[f"{name}, all"], found[f"{name}, one"], strict=True)]
        for name in ("index", "bare")
    }
    return {
        "bare encoder, rows per CPU second": len(sentences) / statistics.median(own["bare"]),
        "start of cse index, CPU s": statistics.median(found["index, one"]),
        "cse index over the bare encoder, CPU": str(ratio(own["index"], own["bare"])),
    }


def measure(work: Path, model: Path, rows: int, sentences: list[str]) -> dict[str, Any]:
    """Index and search a corpus."""
    corpus, folder = work / f"{rows}.txt", work / f"vectors-{rows}"
    queries, sentences = sentences[:QUERIES], sentences[QUERIES:]
    with corpus.open("w", encoding="utf-8") as stream:
        stream.writelines(f"{text}\n" for text in texts(sentences, rows))
    seconds, _, peak = index(corpus, folder, model)
    say(f"{rows:,} rows: indexed in {seconds:.0f} s, {peak:.0f} MB")
    vectors = OnnxEncoder(model, provider="cpu").encode(queries, normalize=True)
    np.savez(folder.with_suffix(".npz"), texts=np.array(queries), vectors=vectors)
    built = {
        "build, s": seconds,
        "build: peak, MB": peak,
        "index on disk, MB": _megabytes((folder / "index.lance").rglob("*")),
    }
    asking = [sys.executable, "-c", _ASK, str(folder)]
    return built | json.loads(subprocess.run(asking, check=True, stdout=subprocess.PIPE, text=True).stdout)


_ASK = """
import json, pathlib, sys
from benchmarks.search import ask
print(json.dumps(ask(pathlib.Path(sys.argv[1]))))
"""


def _megabytes(paths: Iterator[Path]) -> float:
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6


def main() -> int:
    """Measure, print and keep the figures."""
    parser = parser_of(__doc__)
    parser.add_argument("sentences", type=Path, help="a sentence a line")
    parser.add_argument("--model", default="data/bare", help="bundle")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000], help="rows of each index")
    parser.add_argument("--rounds", type=int, default=3, help="of the comparison with the bare encoder; 0: without it")
    parser.add_argument("--rows", type=int, default=16_384, help="sentences of that comparison")
    options = parser.parse_args()

    def everything() -> dict[str, Any]:
        figures: dict[str, Any] = {}
        sentences = options.sentences.read_text(encoding="utf-8").splitlines()
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            if options.rounds:
                figures |= over_encoder(work, options.model, sentences[: options.rows], options.rounds)
            model = token_model(work / "model", options.model)
            for rows in options.sizes:
                found = measure(work, model, rows, sentences)
                figures |= {f"{rows:,} rows: {name}": value for name, value in found.items()}
                say(listed(figures))
                shutil.rmtree(work / f"vectors-{rows}")
        return facts("cpu") | {"figures": figures, "table": listed(figures)}

    return run("search", everything)


if __name__ == "__main__":
    sys.exit(main())
