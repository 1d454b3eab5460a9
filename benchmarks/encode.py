"""Encoding speed against sentence-transformers, OpenVINO, ONNX, fastembed and model2vec at their best.

    python -m benchmarks.encode                                      # MiniLM, the sample's sentences
    python -m benchmarks.encode --triplets nli_for_simcse.csv        # the sentences of your own triplets
    python -m benchmarks.encode --peers torch-fp32 --rounds 5        # against one peer
    python -m benchmarks.encode --device cuda --no-bundles --mixed   # torch alone, texts of 1 to 100 words

Contestants: ``OnnxEncoder`` in every precision of ``export.precision`` and through OpenVINO, with prompts and bare, and
``SentenceEncoder``; the peers, each in a process of its own with the way to run and the batch size that are fastest
here; int8 is calibrated on the same sentences, ours on the exporter's mix as well. All encode the same distinct
sentences in interleaved rounds. Ratios are to sentence-transformers with torch in fp32 (fp16 on a GPU), with the least
and the most. Vectors of unit length are compared with ours in fp32 (with or without prompts), and those of texts alone
with those of the same texts among all. What does not run here is named, with the reason. Run it while the machine is
idle.
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
from benchmarks.harness import ROOT, facts, interleave, lengths_in_words, parser_of, percent, ratio, run, say, table
from benchmarks.inputs import add_inputs, backbone_folder, lengths_of, mixed_texts, sentences_of
from benchmarks.peers.encoder_process import EncoderProcess
from benchmarks.train import default_encoder
from cse import OnnxEncoder, SentenceEncoder
from cse.choices import Precision
from cse.errors import CseError
from cse.export.bundle import write_bundle
from cse.export.mix import mixed_texts as unlike
from cse.export.precision import CALIBRATED
from cse.model.device import choose_device
from cse.runtime.session import no_cuda_reason
from cse.settings import Settings

TorchPrecision = Literal["fp32", "bf16", "fp16"]
OURS = "SentenceEncoder"
BASE = {"cpu": "sentence-transformers torch-fp32", "cuda": "sentence-transformers torch-fp16"}
OWN_BASE = f"{OURS}, fp32, bare"  # without that peer
PYTHON = ROOT / ".venv-peers/bin/python"  # made by `make benchmark`
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


class InProcess:
    """An encoder of ours, as a peer's process is (``EncoderProcess``)."""

    facts = None

    def __init__(self, encode: Callable[[list[str]], np.ndarray], texts: list[str]) -> None:
        self._encode, self._texts = encode, texts
        self._last = encode(texts[:WARM_UP])

    def seconds(self) -> float:
        """Encode all texts and return the seconds."""
        start = time.perf_counter()
        self._last = self._encode(self._texts)
        return time.perf_counter() - start

    def vectors(self) -> np.ndarray:
        """Return the vectors (n, d) of the last time, of unit length."""
        return self._last

    def encode(self, texts: list[str], alone: bool = False, **_: object) -> np.ndarray:
        """Return those of other texts; ``alone``: of one text per call."""
        return np.concatenate([self._encode([text]) for text in texts]) if alone else self._encode(texts)


@dataclass
class Contestant:
    """One way to encode."""

    run: InProcess | EncoderProcess
    precision: str
    prompts: bool = False


Found = tuple[dict[str, Contestant], dict[str, str]]  # by name, and why others are left out


def ours(texts: list[str], models: dict[str, SentenceEncoder], device: str, place: Path | None) -> Found:
    """Return our contestants.

    Args:
        models: on the CPU, ``prompts`` and ``bare``.
        place: folder for the bundles; None: without any.
    """
    found: dict[str, Contestant] = {}
    skipped: dict[str, str] = {}
    elsewhere = {"fp16": "is for a GPU"} if device == "cpu" else {"int8": "is for a CPU"}
    folder = place or Path()
    for precision in get_args(Precision) if place else ():
        name = f"OnnxEncoder, {precision}"
        if reason := elsewhere.get(precision) or (no_cuda_reason() if device == "cuda" else ""):
            skipped[name] = reason
            continue
        given = texts[:CALIBRATED] + unlike(judged=False)  # as `cse export` calibrates
        try:
            for kind, model in models.items():
                out = folder / f"{kind}-{precision}"
                with write_bundle(model, out, normalize=True, metrics={}, precision=precision, texts=given):
                    pass
                run = InProcess(OnnxEncoder(out, provider=device).encode, texts)
                found[f"{name}, {kind}"] = Contestant(run, precision, kind == "prompts")
        except CseError as error:
            skipped[name] = str(error)
    for kind in models if place and device == "cpu" else ():
        try:
            encoder = OnnxEncoder(folder / f"{kind}-fp32", provider="openvino")
        except CseError as error:
            skipped["OnnxEncoder, openvino"] = str(error)
            break
        rounded = "bf16" if "bf16" in encoder.provider_note else "fp32"
        run = InProcess(encoder.encode, texts)
        found[f"OnnxEncoder, openvino {rounded}, {kind}"] = Contestant(run, rounded, kind == "prompts")
    for kind, model in models.items():
        model.to(device)
        precisions: tuple[TorchPrecision, ...] = ("fp32", "bf16") if device == "cpu" else ("fp32", "bf16", "fp16")
        for torch_precision in precisions:
            run = InProcess(partial(_encode, model, torch_precision), texts)
            found[f"{OURS}, {torch_precision}, {kind}"] = Contestant(run, torch_precision, kind == "prompts")
    return found, skipped


def _encode(model: SentenceEncoder, precision: TorchPrecision, texts: list[str]) -> np.ndarray:
    model.precision = precision
    return model.encode(texts)


def peers(kinds: Sequence[str], texts: Path, folder: Path, device: str, stack: ExitStack) -> Found:
    """Start the peers; the stack ends them."""
    found: dict[str, Contestant] = {}
    skipped: dict[str, str] = {}
    for kind in kinds:
        name = kind if kind.startswith(("fastembed", "model2vec")) else f"sentence-transformers {kind}"
        apart = kind in APART[device]
        if apart and not PYTHON.is_file():
            skipped[name] = f"no environment {PYTHON.parents[1].name}; `make benchmark` makes it"
            continue
        say(f"{name}: loading, trying ways to run and batch sizes")
        try:
            peer = stack.enter_context(EncoderProcess(PYTHON if apart else sys.executable, kind, folder, texts, device))
        except CseError as error:
            skipped[name] = str(error)
            continue
        found[name] = Contestant(peer, kind.rpartition("-")[2])
    return found, skipped


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Encode with everything and return the figures."""
    device = choose_device(options.device)
    texts = mixed_texts(options.sentences) if options.mixed else sentences_of(options.sentences, options.triplets)
    figures: dict[str, Any] = facts(floor.name_of(device)) | {
        "backbone": options.backbone,
        "triplets": options.triplets.name if options.triplets else "sample" + ", mixed" * options.mixed,
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
        seconds = interleave({name: each.run.seconds for name, each in contestants.items()}, options.rounds)
        rates = floor.better(rates, floor.measure(config, device))
        exact = {each.prompts: each.run.vectors() for name, each in found.items() if name.startswith(f"{OURS}, fp32")}
        likeness = {name: _compared(each.run, exact[each.prompts], texts[:ALONE]) for name, each in contestants.items()}
    tokens = sum(lengths)
    figures |= {"weights": count, "floor": rates, "seconds": seconds}
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
            "facts": each.run.facts,
        }
        if name != base:
            figures["spread"][name] = (over.least, over.most)
            figures["ratios"][f"{name} / {base}"] = over.median
        cells = f"{len(texts) / median:,.0f}", percent(share), str(over)
        rows.append((name, *cells, *(_cell(value) for value in likeness[name].values())))
    head = ("encoding", "sentences/s", "share of floor", f"this / {base}")
    lines = [table((*head, *_COMPARED), rows)]
    for precision in get_args(Precision):
        pair = [seconds.get(f"OnnxEncoder, {precision}, {kind}") for kind in ("prompts", "bare")]
        if pair[0] and pair[1]:
            cost = ratio(pair[0], pair[1])
            figures["ratios"][f"prompts' seconds / bare, {precision}"] = cost.median
            lines.append(f"prompts cost {100 * (cost.median - 1):.1f} % of the time in {precision}")
    lines += [f"skipped: {name}: {reason}" for name, reason in skipped.items()]
    figures["table"] = "\n".join(lines)
    return figures


_COMPARED = ("largest difference", "1 - lowest cosine", "alone")


def _compared(one: InProcess | EncoderProcess, exact: np.ndarray, first: list[str]) -> dict[str, float | None]:
    """Return how far vectors are from others, and how far the first are from those of the same texts alone.

    None: they have other dimensions.
    """
    vectors = one.vectors()
    alone = float(np.abs(one.encode(first, alone=True) - vectors[: len(first)]).max())
    if vectors.shape != exact.shape:
        return {"largest_difference": None, "one_minus_lowest_cosine": None, "alone": alone}
    return {
        "largest_difference": float(np.abs(vectors - exact).max()),
        "one_minus_lowest_cosine": max(0.0, float(1 - (vectors * exact).sum(axis=1, dtype=np.float64).min())),
        "alone": alone,
    }


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    kinds = list(dict.fromkeys(kind for by_device in (OWN, APART) for those in by_device.values() for kind in those))
    parser = parser_of(__doc__)
    add_inputs(parser)
    parser.add_argument("--mixed", action="store_true", help="texts of 1 to 100 words instead")
    parser.add_argument(
        "--bundles", action=argparse.BooleanOptionalAction, default=True, help="whether to export and time bundles too"
    )
    parser.add_argument("--sentences", type=int, default=3000, help="distinct ones")
    parser.add_argument("--rounds", type=int, default=3, help="of each")
    parser.add_argument(
        "--peers", nargs="*", choices=kinds, default=kinds, metavar="PEER", help="some of them instead of all"
    )
    return parser.parse_args(arguments)


def main() -> int:
    """Print the table and keep the figures."""
    disable_progress_bar()
    return run("encode", lambda: measure(parse()))


if __name__ == "__main__":
    sys.exit(main())
