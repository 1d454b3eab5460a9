"""Build time, size, latency, recall and memory of `cse index` and `cse search`, as an index grows by rows.

    python -m benchmarks.search sentences.txt --model data/bare --sizes 100000 1000000

The rows are the file's sentences and, beyond them, the first half of one and the second half of another. A text's
vector is the mean of what the model says of each of its tokens, so that a million take minutes. `cse index` makes the
table, then a process of its own opens it and asks one query after the other: sentences of the file
that are no rows. On a busy machine, look at the CPU time. Memory is the most that a process holds (its resident set; of
the search without the model). Recall is the share of the ten nearest by exact search that the approximate one finds.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer

from benchmarks.harness import facts, listed, parser_of, run, say
from cse.runtime.bundle import FORMAT, MODEL, TOKENIZER, Manifest
from cse.runtime.domain import DOMAIN_FORMAT, DomainFacts, Shape
from cse.runtime.onnx_encoder import OnnxEncoder
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


def command(*words: str) -> tuple[float, float]:
    """Run a command of `cse`; return its seconds and the most memory of all commands so far, in MB."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "cse", *words], check=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6
    return time.perf_counter() - start, peak


def measure(work: Path, model: Path, rows: int, sentences: list[str]) -> dict[str, Any]:
    """Index and search a corpus."""
    corpus, folder = work / f"{rows}.txt", work / f"vectors-{rows}"
    queries, sentences = sentences[:QUERIES], sentences[QUERIES:]
    with corpus.open("w", encoding="utf-8") as stream:
        stream.writelines(f"{text}\n" for text in texts(sentences, rows))
    seconds, peak = command("index", str(corpus), "--out", str(folder), "--model", str(model), "--device", "cpu")
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
    options = parser.parse_args()

    def every_size() -> dict[str, Any]:
        figures: dict[str, Any] = {}
        sentences = options.sentences.read_text(encoding="utf-8").splitlines()
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            model = token_model(work / "model", options.model)
            for rows in options.sizes:
                found = measure(work, model, rows, sentences)
                figures |= {f"{rows:,} rows: {name}": value for name, value in found.items()}
                say(listed(figures))
                shutil.rmtree(work / f"vectors-{rows}")
        return facts("cpu") | {"figures": figures, "table": listed(figures)}

    return run("search", every_size)


if __name__ == "__main__":
    sys.exit(main())
