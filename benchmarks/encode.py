"""Encoding speed against sentence-transformers, OpenVINO, ONNX, fastembed and model2vec at their best.

    python -m benchmarks.encode                                      # MiniLM, generated sentences
    python -m benchmarks.encode --triplets nli_for_simcse.csv        # the sentences of your own triplets
    python -m benchmarks.encode --peers torch-fp32 --rounds 5        # against one peer
    python -m benchmarks.encode --device cuda --no-bundles --mixed   # torch alone, texts of 1 to 100 words
    python -m benchmarks.encode --senteval SentEval/data/downstream  # and the quality of each

Contestants: ``OnnxEncoder`` in every precision of ``export.precision`` and through OpenVINO, with prompts and bare, and
``SentenceEncoder``; the peers, each in a process of its own with the way to run and the batch size that are fastest
here; int8 is calibrated on the same sentences. All encode the same distinct sentences in interleaved rounds. Ratios are
to sentence-transformers with torch in fp32 (fp16 on a GPU), with the least and the most, of seconds and of the
processor's seconds. Vectors of unit length are compared with ours in fp32 (with or without prompts), and those of texts
alone with those of the same texts among all. What does not run here is named, with the reason. Run it while the machine
is idle.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from transformers.utils.logging import disable_progress_bar

from benchmarks import floor
from benchmarks.asking import LoadError
from benchmarks.backbones import add_backbone, backbone_folder
from benchmarks.mixed_texts import mixed_texts
from benchmarks.peers.encoder_process import EncoderProcess
from benchmarks.record import facts, histogram, lengths_in_words, percent, run, table
from benchmarks.rounds import interleave, ratio, timed
from benchmarks.texts import add_texts, lengths_of, sentences_of
from benchmarks.train import default_encoder
from cse import OnnxEncoder, SentenceEncoder
from cse.choices import Precision
from cse.data.suite import read_senteval
from cse.data.tasks.kinds import ScoredPairs
from cse.errors import CseError, nearest
from cse.evaluation.sts import evaluate_sts
from cse.export.bundle import write_bundle
from cse.export.int8 import CALIBRATED
from cse.runtime.providers import no_cuda_reason
from cse.settings import Settings
from cse.training.device import choose_device

TorchPrecision = Literal["fp32", "bf16", "fp16"]
NAME = "encode"
BASE = {"cpu": "sentence-transformers torch-fp32", "cuda": "sentence-transformers torch-fp16"}
OWN_BASE = "SentenceEncoder, fp32, bare"  # without that peer
PYTHON = Path(__file__).parents[1] / ".venv-peers/bin/python"  # made by `make benchmark`
# peers by device, and whether their environment is ours; the rest needs one of its own
OWN = {
    "cpu": ("torch-fp32", "torch-bf16", "compile-fp32", "compile-bf16"),
    "cuda": ("torch-fp32", "torch-bf16", "torch-fp16", "flash-fp16"),
}
_ONNX, _OPENVINO = ("onnx-fp32", "onnx-int8"), ("openvino-fp32", "openvino-bf16", "openvino-int8")
APART = {"cpu": (*_ONNX, *_OPENVINO, "fastembed-fp32", "model2vec-static"), "cuda": ()}
LIMIT = 256  # tokens, sentence-transformers' limit for MiniLM
WARM_UP = 200  # sentences
ALONE = 64  # sentences that are encoded one by one, too


@dataclass
class Contestant:
    """One way to encode.

    Attributes:
        seconds: encodes all sentences and returns the seconds.
        cpu_seconds: returns the processor's seconds of the last time.
        vectors: returns the vectors (n, d) of the last time, of unit length.
        encode: returns those of other texts, if told so of one text per call.
    """

    seconds: Callable[[], float]
    cpu_seconds: Callable[[], float]
    vectors: Callable[[], np.ndarray]
    encode: Callable[[list[str], bool], np.ndarray]
    precision: str
    prompts: bool = False
    facts: Any = None


def ours(
    texts: list[str], models: dict[str, SentenceEncoder], device: str, place: Path | None
) -> tuple[dict[str, Contestant], dict[str, str]]:
    """Return our contestants by name, and why others are left out.

    Args:
        models: on the CPU, ``prompts`` and ``bare``.
        device: ``cpu`` or ``cuda``.
        place: folder for the bundles; None: without any.
    """
    found: dict[str, Contestant] = {}
    skipped: dict[str, str] = {}
    for precision in get_args(Precision):
        if place is None:
            break
        name = f"OnnxEncoder, {precision}"
        elsewhere = {"fp16": "is for a GPU"} if device == "cpu" else {"int8": "is for a CPU"}
        reason = elsewhere.get(precision) or (no_cuda_reason() if device == "cuda" else "")
        try:
            if reason:
                raise CseError(reason)
            for kind, model in models.items():
                with write_bundle(
                    model,
                    place / f"{kind}-{precision}",
                    normalize=True,
                    metrics={},
                    precision=precision,
                    texts=texts[:CALIBRATED],
                ):
                    pass
                encoder = OnnxEncoder(place / f"{kind}-{precision}", provider=device)
                found[f"{name}, {kind}"] = _in_process(encoder.encode, texts, precision, kind == "prompts")
        except CseError as error:
            skipped[name] = str(error)
    if device == "cpu" and place is not None:
        for kind in models:
            try:
                encoder = OnnxEncoder(place / f"{kind}-fp32", provider="openvino")
            except CseError as error:
                skipped["OnnxEncoder, openvino"] = str(error)
                break
            rounded = "bf16" if "bf16" in encoder.provider_note else "fp32"
            found[f"OnnxEncoder, openvino {rounded}, {kind}"] = _in_process(
                encoder.encode, texts, rounded, kind == "prompts"
            )
    for kind, model in models.items():
        model.to(device)
        precisions: tuple[TorchPrecision, ...] = ("fp32", "bf16") if device == "cpu" else ("fp32", "bf16", "fp16")
        for precision in precisions:
            encode = partial(_encode, model, precision)
            found[f"SentenceEncoder, {precision}, {kind}"] = _in_process(encode, texts, precision, kind == "prompts")
    return found, skipped


def _encode(model: SentenceEncoder, precision: TorchPrecision, texts: list[str]) -> np.ndarray:
    model.precision = precision
    return model.encode(texts)


def _in_process(
    encode: Callable[[list[str]], np.ndarray], texts: list[str], precision: str, prompts: bool
) -> Contestant:
    encode(texts[:WARM_UP])
    last: list[np.ndarray] = []
    cpu: list[float] = []

    def run() -> None:
        start = time.process_time()
        last[:] = [encode(texts)]
        cpu[:] = [time.process_time() - start]

    def others(given: list[str], alone: bool) -> np.ndarray:
        return np.concatenate([encode([text]) for text in given]) if alone else encode(given)

    return Contestant(lambda: timed(run), lambda: cpu[0], lambda: last[0], others, precision, prompts)


def peers(
    kinds: Sequence[str], texts: Path, folder: Path, device: str, stack: ExitStack
) -> tuple[dict[str, Contestant], dict[str, str]]:
    """Start the peers and return them by name, and why others are left out; the stack ends them."""
    found: dict[str, Contestant] = {}
    skipped: dict[str, str] = {}
    for kind in kinds:
        apart = kind in APART[device]
        software = "" if kind.startswith(("fastembed", "model2vec")) else "sentence-transformers "
        if apart and not PYTHON.is_file():
            skipped[software + kind] = f"no environment {PYTHON.parents[1].name}; `make benchmark` makes it"
            continue
        print(f"{software}{kind}: loading, trying ways to run and batch sizes", file=sys.stderr, flush=True)
        try:
            peer = stack.enter_context(EncoderProcess(PYTHON if apart else sys.executable, kind, folder, texts, device))
        except LoadError as error:
            skipped[software + kind] = str(error)
            continue
        found[software + kind] = Contestant(
            peer.seconds,
            partial(getattr, peer, "cpu_seconds"),
            peer.vectors,
            peer.encode,
            kind.rpartition("-")[2],
            facts=peer.facts,
        )
    return found, skipped


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Encode with everything and return the figures."""
    device = choose_device(options.device)
    texts = mixed_texts(options.sentences) if options.mixed else sentences_of(options.sentences, options.triplets)
    tasks = _tasks(options.senteval, options.tasks)
    figures: dict[str, Any] = facts(floor.name_of(device)) | {
        "backbone": options.backbone,
        "triplets": options.triplets.name if options.triplets else "generated" + ", mixed" * options.mixed,
        "sentences": len(texts),
    }
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = stack.enter_context(backbone_folder(options.backbone))
        lengths = lengths_of(texts, folder, LIMIT)
        print(lengths_in_words(lengths, LIMIT))
        (place / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
        models = {"prompts": default_encoder(Settings(), folder), "bare": SentenceEncoder.load(folder)}
        config = models["bare"].backbone.model.config
        count, rates = floor.weights(models["bare"].backbone.model), floor.measure(config, device)
        print(floor.in_words(rates), flush=True)
        found, skipped = ours(texts, models, device.type, place if options.bundles else None)
        wanted = [kind for kind in (*OWN[device.type], *APART[device.type]) if kind in options.peers]
        others, left_out = peers(wanted, place / "texts.json", folder, device.type, stack)
        base = BASE[device.type] if BASE[device.type] in others else OWN_BASE
        contestants, skipped = found | others, skipped | left_out
        cpu: dict[str, list[float]] = {name: [] for name in contestants}

        def timed_twice(name: str) -> float:
            found = contestants[name].seconds()
            cpu[name].append(contestants[name].cpu_seconds())
            return found

        seconds = interleave({name: partial(timed_twice, name) for name in contestants}, options.rounds)
        rates = floor.better(rates, floor.measure(config, device))
        exact = {
            each.prompts: each.vectors() for name, each in found.items() if name.startswith("SentenceEncoder, fp32")
        }
        likeness = {name: _compared(each, exact[each.prompts], texts[:ALONE]) for name, each in contestants.items()}
        if tasks:
            for name, each in contestants.items():
                print(f"{name}: STS", file=sys.stderr, flush=True)
                likeness[name]["sts"] = None if each.prompts else evaluate_sts(_Encoder(each), tasks).average()
    tokens = sum(lengths)
    figures |= {"weights": count, "lengths": histogram(lengths), "floor": rates}
    figures |= {"seconds": seconds, "cpu_seconds": cpu, "tasks": [task.name for task in tasks]}
    figures |= {"skipped": skipped, "contestants": {}, "spread": {}, "ratios": {}}
    rows = []
    for name, each in contestants.items():
        median = statistics.median(seconds[name])
        over = ratio(seconds[base], seconds[name])
        share = floor.share(tokens / median, floor.FORWARD, count, rates.get(each.precision))
        figures["contestants"][name] = likeness[name] | {
            "sentences_per_s": len(texts) / median,
            "tokens_per_s": tokens / median,
            "share_of_floor": share,
            "facts": each.facts,
        }
        if name != base:
            figures["spread"][name] = (over.least, over.most)
            figures["ratios"][f"{name} / {base}"] = over.median
        cells = f"{len(texts) / median:,.0f}", percent(share), str(over), str(ratio(cpu[base], cpu[name]))
        rows.append((name, *cells, *(_cell(value) for value in likeness[name].values())))
    head = ("encoding", "sentences/s", "share of floor", f"this / {base}", "of the processor's seconds")
    lines = [table((*head, *_COMPARED, *(["STS"] if tasks else [])), rows)]
    for precision in get_args(Precision):
        pair = [seconds.get(f"OnnxEncoder, {precision}, {kind}") for kind in ("prompts", "bare")]
        if pair[0] and pair[1]:
            cost = ratio(pair[0], pair[1])
            figures["ratios"][f"prompts' seconds / bare, {precision}"] = cost.median
            lines.append(f"prompts cost {100 * (cost.median - 1):.1f} % of the time in {precision}")
    lines += [f"skipped: {name}: {reason}" for name, reason in skipped.items()]
    figures["table"] = "\n".join(lines)
    return figures


class _Encoder:
    """A contestant as evaluation takes it."""

    def __init__(self, contestant: Contestant) -> None:
        self._encode = contestant.encode

    def encode(self, sentences: list[str], **_: object) -> np.ndarray:
        """Return vectors (n, d) of unit length."""
        return self._encode(sentences, False)


_COMPARED = ("largest difference", "1 - lowest cosine", "alone")


def _compared(one: Contestant, exact: np.ndarray, first: list[str]) -> dict[str, float | None]:
    """Return how far vectors of unit length are from others, in numbers and angles; None: they have other dimensions.

    ``alone`` is how far the first are from those of the same texts alone, in numbers.
    """
    vectors = one.vectors()
    alone = float(np.abs(one.encode(first, True) - vectors[: len(first)]).max())
    if vectors.shape != exact.shape:
        return {"largest_difference": None, "one_minus_lowest_cosine": None, "alone": alone}
    return {
        "largest_difference": float(np.abs(vectors - exact).max()),
        "one_minus_lowest_cosine": max(0.0, float(1 - (vectors * exact).sum(axis=1, dtype=np.float64).min())),
        "alone": alone,
    }


def _cell(value: float | None) -> str:
    """Return a difference, which is small, or a score, which is not, as text."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value >= 2 else f"{value:.1e}"


def _tasks(folder: Path | None, names: Sequence[str]) -> list[ScoredPairs]:
    """Return tasks of a folder of SentEval's by name."""
    if folder is None:
        return []
    tasks = {task.name: task for task in read_senteval(folder).sts}
    for name in names:
        if name not in tasks:
            raise CseError(f"--tasks: no STS task {name!r}{nearest(name, tasks)}; give some of {', '.join(tasks)}")
    return [tasks[name] for name in names]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    kinds = list(dict.fromkeys(kind for by_device in (OWN, APART) for those in by_device.values() for kind in those))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_texts(parser)
    add_backbone(parser)
    parser.add_argument("--mixed", action="store_true", help="generated texts of 1 to 100 words instead")
    parser.add_argument(
        "--bundles", action=argparse.BooleanOptionalAction, default=True, help="whether to export and time bundles too"
    )
    parser.add_argument("--sentences", type=int, default=3000, help="distinct ones; default: 3000")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--senteval", type=Path, metavar="FOLDER", help="SentEval's downstream; adds a column of STS")
    parser.add_argument("--tasks", nargs="+", default=["STS-B"], metavar="TASK", help="of STS; default: STS-B")
    parser.add_argument(
        "--peers", nargs="*", choices=kinds, default=kinds, metavar="PEER", help=f"of {', '.join(kinds)}"
    )
    return parser.parse_args(arguments)


def main() -> int:
    """Print the table and keep the figures."""
    disable_progress_bar()
    return run(NAME, lambda: measure(parse()))


if __name__ == "__main__":
    sys.exit(main())
