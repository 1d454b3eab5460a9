"""The bundle matches the model: same numbers, prompts inside, one attention node per layer, published atomically; and
``provider: openvino`` gives onnxruntime's vectors, to what bfloat16 rounds where the processor has it.
"""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from cse.export import graph as graph_module
from cse.export.bank import SENTENCES as OF_THE_BANK
from cse.model.declared import MINILM
from cse.model.pooling import POOLERS
from cse.model.prompts import PROMPT_KINDS
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime import session
from cse.runtime.bundle import MANIFEST, MODEL, TOKENIZER, verify
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.session import open_graph
from tests.cli.workspace import contents
from tests.export.banks import make_bank, make_encoders
from tests.export.exports import bundle_of, export
from tests.export.systems import PARTS, ROWS, SENTENCES
from tests.parts import backbone_of, new_prompt, refusal, sentence_encoder
from tests.tiny import WORDS, make_backbone_folder

ROOT = Path(__file__).parents[2]


def test_rows_cover_every_value():
    families, kinds, options = zip(*ROWS.values(), *PARTS.values(), strict=True)
    assert set(families) == {"bert", "roberta"}
    assert set(kinds) == {None, *PROMPT_KINDS}
    assert {row["pooler"] for row in options} == set(POOLERS)
    assert {row.get("mlp", "none") for row in options} == {"none", "train_only", "always"}


# ---- the same numbers ---------------------------------------------------------------------------------------------


def test_embeddings_equal_torch_in_padded_batches(either):
    encoder, onnx_encoder = either.encoder, either.open()
    lengths = {len(encoding.ids) for encoding in encoder.backbone.tokenizer.encode_batch(SENTENCES)}
    assert len(lengths) > 4, "rows of one length are not padded"
    for normalize in (True, False):
        expected = encoder.encode(SENTENCES, normalize=normalize)
        for batch_size in (1, 3, 64):
            found = onnx_encoder.encode(SENTENCES, batch_size=batch_size, normalize=normalize)
            np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)
    assert expected.shape == (len(SENTENCES), encoder.dimension)
    cosines = (lambda found: found @ found.T)(onnx_encoder.encode(SENTENCES))
    apart = cosines[~np.eye(len(SENTENCES), dtype=bool)]
    assert apart.max() < 0.9999, "a template that ate its sentence would hold too"


@pytest.mark.usefixtures("openvino_in_float32")
def test_openvino_gives_the_same(either):
    found = OnnxEncoder(either.folder, provider="openvino", threads=1)
    assert found.provider_note == "running on openvino (fp32; 1 thread)"
    np.testing.assert_allclose(found.encode(SENTENCES), either.open().encode(SENTENCES), atol=1e-5, rtol=0)


# ---- the graph ----------------------------------------------------------------------------------------------------


def test_one_attention_node_a_layer(either):
    kinds = [node.op_type for node in onnx.load(either.folder / MODEL).graph.node]
    assert (kinds.count("Attention"), kinds.count("Softmax")) == (either.encoder.backbone.layers, 0) == (3, 0)


def test_prompts_are_constants_and_not_inputs(exported):
    graph = onnx.load(exported.folder / MODEL).graph
    assert "Transpose" not in {node.op_type for node in graph.node}, "nothing is moved about"
    assert [value.name for value in graph.input] == ["input_ids", "attention_mask"]
    assert [value.name for value in graph.output] == ["sentence_embedding"]
    wanted = [np.sort(block.detach(), None) for layer in exported.encoder.prefix() or [] for block in layer]
    constants = [np.sort(numpy_helper.to_array(weight), None) for weight in graph.initializer]
    for block in wanted:
        assert sum(np.array_equal(each, block) for each in constants) == 1, "it is stored once, after its projections"
    deep = exported.encoder.prompt is not None and exported.encoder.prompt.deep
    assert len(wanted) == (6 if deep else 0)


def test_manifest_says_what_is_in_the_folder_and_nothing_says_where_the_project_lies(exported):
    encoder, manifest = exported.encoder, verify(exported.folder)
    assert sorted(path.name for path in exported.folder.iterdir()) == [MANIFEST, MODEL, TOKENIZER]
    assert manifest.backbone["sha256"] == encoder.backbone.files.sha256
    assert manifest.metrics == {"train": {"dev_spearman": 80.5}}
    assert {"cse", "torch", "transformers", "onnx", "tokenizers"} <= manifest.domain.versions.keys()
    assert manifest.parity["largest_difference"] < 1e-5
    assert manifest.parity["of_training"] == pytest.approx(1, abs=1e-3), "all that training changed is in it"
    for name in (MODEL, TOKENIZER):  # the manifest names the backbone's folder
        content = contents(exported.folder)[name]
        assert not any(words in content for words in (str(ROOT).encode(), b"site-packages", b".py"))


def test_weights_too_large_for_one_file_go_beside_it(tmp_path, monkeypatch):
    encoder = SentenceEncoder.load(make_backbone_folder(tmp_path / "backbone", "bert", num_hidden_layers=1))
    assert graph_module.EXTERNAL_DATA_BYTES < 2**31
    monkeypatch.setattr(graph_module, "EXTERNAL_DATA_BYTES", 1000)
    bundle = export(encoder, tmp_path / "bundle")
    data = bundle.folder / f"{MODEL}.data"
    assert data.stat().st_size > 40_000 > (bundle.folder / MODEL).stat().st_size
    assert sorted(verify(bundle.folder).files) == [MODEL, data.name, TOKENIZER]
    moved = bundle.folder.rename(tmp_path / "moved")
    found = OnnxEncoder(moved, provider="cpu", threads=1).encode(SENTENCES)
    np.testing.assert_allclose(found, encoder.encode(SENTENCES), atol=1e-5, rtol=0)
    (moved / data.name).write_bytes((moved / data.name).read_bytes()[:-1])
    assert "model.onnx.data: does not match" in refusal(OnnxEncoder, moved)


# ---- templates and noise --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ["roberta template denoised", "roberta trained template"])
def test_an_empty_text_less_its_noise_is_zero(exports, row):
    """Its rounding error, normalised, would be a direction of its own on every machine."""
    exported = exports(row)
    for encoder in (exported.encoder, exported.open()):
        found = encoder.encode(["", "a dog"])
        assert not found[0].any()
        assert np.linalg.norm(found[1]) == pytest.approx(1, abs=1e-5)


# ---- the bare MiniLM, whose bundle is written without torch ---------------------------------------------------------

INDEX = "import sys; sys.modules['torch'] = None; from cse.cli import main; main()"


@pytest.mark.slow
def test_the_first_index_needs_no_torch_and_finds_what_its_export_finds(tmp_path):
    (tmp_path / "corpus.txt").write_text("\n".join(filter(None, OF_THE_BANK)))
    command = [sys.executable, "-c", INDEX, "index", "corpus.txt", "--out", "table"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    own, exported = OnnxEncoder(tmp_path / "data/bare"), bundle_of(SentenceEncoder.load(MINILM), tmp_path / "exported")
    one, other = (bundle.encode(OF_THE_BANK, normalize=True) for bundle in (own, exported))
    np.testing.assert_allclose(one, other, atol=1e-6)
    facts = [json.loads((bundle.path / MANIFEST).read_text()) for bundle in (own, exported)]
    for each in facts:
        del each["files"], each["seal"], each["domain"]["versions"]
    assert facts[0] == facts[1], "an index of one is searched with the other, and with query sides on it"


# ---- OpenVINO --------------------------------------------------------------------------------------------------------

TEXTS = [*SENTENCES, "", "red bird", *(" ".join(WORDS[start : start + 1 + start % 7]) for start in range(20))]


@pytest.fixture(scope="module")
def bundle(tiny_folders, tmp_path_factory):
    bert = backbone_of(tiny_folders["bert"])
    encoder = sentence_encoder(bert, new_prompt("key_value", bert, length=5, init_std=0.7), pooler="mean")
    folder = tmp_path_factory.mktemp("openvino")
    for precision in ("fp32", "int8"):
        bundle_of(encoder, folder / precision, precision=precision, texts=TEXTS)
    return folder / "fp32"


def test_several_threads_ask_at_once(bundle):
    encoder = OnnxEncoder(bundle, provider="openvino", threads=2)
    rows = [encoder.tokenize([text]).row(0) for text in TEXTS]
    expected = encoder.embed_rows(rows, one_core=True)
    most = 2e-2 if "bf16" in encoder.provider_note else 1e-5  # tiny widths round more than MiniLM's
    with ThreadPoolExecutor(8) as threads:
        for vectors in threads.map(lambda i: encoder.embed_rows(rows, one_core=i % 2 == 0), range(8)):
            np.testing.assert_allclose(vectors, expected, rtol=most, atol=most)


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
