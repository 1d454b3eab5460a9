"""``provider: openvino``: the same vectors as onnxruntime's, to what bfloat16 rounds where the processor has it."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cse.model.device import choose_device
from cse.runtime import session
from cse.runtime.bundle import MODEL
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.session import open_graph
from tests.export.banks import make_bank, make_encoders
from tests.export.exports import bundle_of
from tests.export.systems import SENTENCES
from tests.parts import backbone_of, new_prompt, refusal, sentence_encoder
from tests.tiny import WORDS

TEXTS = [*SENTENCES, "", "red bird", *(" ".join(WORDS[start : start + 1 + start % 7]) for start in range(20))]


def tolerance(encoder: OnnxEncoder) -> float:
    """What its precision may change in a number of a vector of unit length; tiny widths round more than MiniLM's."""
    return 2e-2 if "bf16" in encoder.provider_note else 1e-5


@pytest.fixture(scope="module")
def bundle(tiny_folders, tmp_path_factory):
    bert = backbone_of(tiny_folders["bert"])
    encoder = sentence_encoder(bert, new_prompt("key_value", bert, length=5, init_std=0.7), pooler="mean")
    folder = tmp_path_factory.mktemp("openvino")
    for precision in ("fp32", "int8"):
        bundle_of(encoder, folder / precision, precision=precision, texts=TEXTS)
    return folder / "fp32"


@pytest.mark.parametrize("threads", [1, 2])
def test_vectors_are_those_of_onnxruntime(bundle, threads):
    found = OnnxEncoder(bundle, provider="openvino", threads=threads)
    assert found.provider == "openvino"
    expected = OnnxEncoder(bundle, provider="cpu", threads=1).encode(TEXTS)
    np.testing.assert_allclose(found.encode(TEXTS), expected, atol=tolerance(found))
    alone = np.stack([found.encode(text) for text in TEXTS])
    np.testing.assert_allclose(alone, expected, atol=tolerance(found))
    assert found.encode([]).shape == (0, found.dimension)


def test_several_threads_ask_at_once(bundle):
    encoder = OnnxEncoder(bundle, provider="openvino", threads=2)
    rows = [encoder.tokenize([text]).row(0) for text in TEXTS]
    expected = encoder.embed_rows(rows, one_core=True)
    with ThreadPoolExecutor(8) as threads:
        for vectors in threads.map(lambda i: encoder.embed_rows(rows, one_core=i % 2 == 0), range(8)):
            np.testing.assert_allclose(vectors, expected, rtol=tolerance(encoder), atol=tolerance(encoder))


def test_a_bank_and_its_domains(tiny_folders, empty_banks, tmp_path):
    encoders = make_encoders(tiny_folders["bert"])
    bank = make_bank(tmp_path / "bank", empty_banks("bert"), encoders)
    names = [list(encoders)[row % len(encoders)] for row in range(len(TEXTS))]
    found = OnnxEncoder(bank, provider="openvino", threads=2)
    expected = OnnxEncoder(bank, provider="cpu", threads=2).encode(TEXTS, domain=names)
    vectors = found.encode(TEXTS, domain=names)
    assert (vectors * expected).sum(axis=1).min() > (0.999 if "bf16" in found.provider_note else 1 - 1e-5)
    assert np.abs(vectors - found.encode(TEXTS, domain="bare")).max() > 0.1, "else a mix-up would not show"


def test_what_openvino_does_not_run_is_one_line(bundle, tmp_path, monkeypatch, capfd):
    said = refusal(OnnxEncoder, bundle.parent / "int8", provider="openvino")
    assert "int8: in int8, which onnxruntime runs as fast: use provider cpu" in said
    broken = tmp_path / "broken.onnx"
    broken.write_bytes((bundle / MODEL).read_bytes()[:100])
    assert "broken.onnx: OpenVINO cannot load it" in refusal(open_graph, broken, "openvino", 1)
    monkeypatch.setitem(sys.modules, "openvino", None)
    monkeypatch.setattr(session, "_core", session._core.__wrapped__)
    said = refusal(open_graph, bundle / MODEL, "openvino", 1)
    assert "not installed: pip install 'cse[cpu,openvino]'" in said
    assert capfd.readouterr() == ("", "")


SIGNAL = """import faulthandler, gc, signal, sys
faulthandler.enable()  # as pytest and Ray do: it gives the thread a stack for signals
from cse import OnnxEncoder
for _ in range(3):
    OnnxEncoder(sys.argv[1], provider="openvino", threads=2).encode(["red bird"] * 20)
    gc.collect()
signal.signal(signal.SIGTERM, lambda *_: print("stopping"))
signal.raise_signal(signal.SIGTERM)
"""
AT_ONCE = """import sys, threading
from pathlib import Path
import openvino
from cse.runtime.session import OpenvinoGraph
graph = OpenvinoGraph(Path(sys.argv[1]) / "model.onnx", threads=2, at_once=2)
start = threading.Barrier(8)
sys.setswitchinterval(1e-6)
def look_up():  # as each request does
    start.wait()
    openvino.Type.i64.to_dtype()
threads = [threading.Thread(target=look_up, daemon=True) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("answered")
"""


@pytest.mark.parametrize(("script", "said"), [(SIGNAL, "stopping\n"), (AT_ONCE, "answered\n")])
def test_a_process_gets_its_signals_and_its_first_requests_may_come_at_once(bundle, script, said):
    """OpenVINO fills a table on first use; two threads that do so waited for each other for ever."""
    done = subprocess.run([sys.executable, "-c", script, bundle], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (0, said), done.stderr


def test_torch_beside_it_runs_on_the_cpu():
    """``cse evaluate BUNDLE -s evaluation.device=openvino`` also scores the bare backbone."""
    assert choose_device("openvino").type == "cpu"
