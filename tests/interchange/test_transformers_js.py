"""Bundles become folders of transformers.js, which gives their vectors in Chromium, of cut texts too."""

import json
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from string import ascii_lowercase

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer, Tokenizer, pre_tokenizers, processors

from cse.interchange import transformers_js
from cse.interchange.card import Measures, card_of, make_card
from cse.interchange.model_folder import open_folder
from cse.interchange.transformers_js import export_folder
from cse.runtime.encode import unit_rows
from cse.runtime.onnx_encoder import OnnxEncoder
from tests.cli.workspace import work
from tests.export.exports import bundle_of
from tests.export.systems import SENTENCES, make_encoder
from tests.pages.blocks import run_by
from tests.parts import backbone_of, refusal
from tests.runtime import conftest as tiny
from tests.tiny import DECLARED, WORDS, make_backbone_folder

COMMAND, SCRIPT = (block.text for block in run_by("docs/interchange.md", __file__))
TEXTS = [*SENTENCES, "Café?", "the 猫 sleeps", "a 😀 dog. 🎉", "[SEP] a [MASK]"]
TEXTS += [f"{'cat ' * count}dog" for count in range(20, 40)]  # around where texts are cut


@pytest.fixture
def simple(tmp_path) -> Path:
    """A bundle without a language model, of texts of at most six tokens."""
    tokenizer = tiny.make_tokenizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.enable_padding(length=128)
    return tiny.write_bundle(tmp_path / "bundle", tokenizer, texts={"query": "query: "})


def test_tokens_cut_as_the_library_cuts_them_give_the_bundles_vectors(simple, tmp_path):
    texts = ["the cat sat on a mat", "dog", "", "the cat sat on", "a dog sat on the mat the cat sat on"]
    assert export_folder(str(simple), tmp_path / "out", tolerance=1e-5) < 1e-6
    tokenizer = Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))
    tokenizer.enable_padding()
    rows, cut = tokenizer.encode_batch(texts), slice(tiny.MAX_LENGTH)
    given = {"input_ids": [row.ids[cut] for row in rows], "attention_mask": [row.attention_mask[cut] for row in rows]}
    given = {name: np.array(values) for name, values in given.items()}
    vectors, states = ort.InferenceSession(tmp_path / "out/onnx/model.onnx").run(None, given)
    expected = OnnxEncoder(simple, provider="cpu").encode(texts, normalize=True)
    np.testing.assert_allclose(unit_rows(vectors), expected, atol=1e-6)
    np.testing.assert_array_equal(states, np.repeat(vectors[:, None], tiny.MAX_LENGTH, axis=1))
    as_it_was = unit_rows(ort.InferenceSession(simple / "model.onnx").run(None, given)[0])
    apart = np.abs(as_it_was - expected).max(axis=1)
    assert (apart > 1e-2).tolist() == [True, False, False, False, True], "a text that is cut has lost its last token"


@pytest.mark.parametrize(
    ("precision", "graph", "dtype"),
    [("fp32", "model", "fp32"), ("fp16", "model_fp16", "fp16"), ("int8", "model_quantized", "q8")],
)
def test_the_folder_is_laid_out_as_the_library_looks_for_it(cse, simple, precision, graph, dtype, monkeypatch):
    monkeypatch.chdir(simple.parent)
    tiny.edit(simple, precision=precision, backbone={"name": "owner/model"})
    done = cse("export", "bundle", "--format", "transformers.js", "--out", "out")
    assert done.code == 0, done.err
    assert done.out.endswith("put 'query: ' before each text of role query yourself\n")
    files = {path.relative_to("out").as_posix() for path in Path("out").rglob("*.*")}
    assert files == {"config.json", "manifest.json", "tokenizer.json", "tokenizer_config.json", f"onnx/{graph}.onnx"}
    read = {name: json.loads(Path("out", name).read_text()) for name in files if name.endswith(".json")}
    assert read["config.json"]["transformers.js_config"] == {"dtype": dtype}
    told = read["tokenizer_config.json"]
    assert (told["model_max_length"], told["pad_token"], told["unk_token"]) == (6, "[PAD]", "[UNK]")
    assert read["tokenizer.json"]["padding"] is None
    outputs = [value.name for value in onnx.load(f"out/onnx/{graph}.onnx").graph.output]
    assert outputs == ["sentence_embedding", "last_hidden_state"]
    card = make_card(open_folder(Path("out")), "me/tickets", Measures({}, {}), card_of(""))
    assert "library_name: transformers.js" in card and 'pipeline("feature-extraction", "me/tickets")' in card
    assert "base_model: owner/model" in card


def test_what_a_browser_cannot_take_is_refused(cse, simple, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def refused(*words: str) -> str:
        line = cse("export", "--format", "transformers.js", *words).refused()
        assert not (tmp_path / "out").exists()
        return line

    to = ("--out", "out")
    assert "--classifier: transformers.js reads none" in refused("bundle", *to, "--classifier", "bundle")
    tiny.write_bundle(tmp_path / "whitespace")
    assert "its tokenizer has Whitespace, which splits otherwise there" in refused("whitespace", *to)
    words = tiny.make_tokenizer()
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    around = [{"id": "[before]", "ids": [4, 5], "tokens": ["before0", "before1"]}]
    words.post_processor = processors.TemplateProcessing(single="[before] $A", special_tokens=around)
    tiny.write_bundle(tmp_path / "template", words)
    assert "because that library puts no template around a text" in refused("template", *to)
    with monkeypatch.context() as patch:
        patch.setattr(transformers_js, "_MOST", 100)
        assert "and a browser takes 2; export with export.precision: fp16 or int8" in refused("bundle", *to)
    tiny.edit(simple, kind="bank", only="", layers=1, heads=1, head_size=1, words=1, positions=6)
    assert "bundle is a bank; give a bundle of one model" in refused("bundle", *to)


def test_a_graph_that_computes_otherwise_is_not_published(simple, tmp_path, monkeypatch):
    wrong = transformers_js._BEFORE.replace("(js_lost, js_last", "(js_lost, js_zero")
    monkeypatch.setattr(transformers_js, "_BEFORE", wrong)
    line = refusal(export_folder, str(simple), tmp_path / "out", tolerance=1e-5)
    assert "bundle: its vectors would differ by " in line and line.endswith("; nothing was published")
    assert not (tmp_path / "out").exists()


# ---- the library itself -------------------------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HEAD = """<link rel="icon" href="data:,">
<script type="importmap">{"imports": {"@huggingface/transformers": "/transformers.js"}}</script>"""
ENCODE = """async ([name, pooling, texts]) => {
  const encode = await pipeline("feature-extraction", name);
  return (await encode(texts, {pooling, normalize: true})).tolist();
}"""


def with_words(folder: Path) -> Path:
    """A tiny BERT with the tokenizer that most models have: of words in pieces."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *ascii_lowercase[1:], "?"]
    pieces += [f"##{letter}" for letter in ascii_lowercase]
    tokenizer = BertWordPieceTokenizer({piece: place for place, piece in enumerate(pieces)})
    make_backbone_folder(folder, "bert", vocab_size=128, max_length=DECLARED)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def with_bytes(folder: Path) -> Path:
    """A tiny RoBERTa with its usual tokenizer: of bytes that are merged, with no unknown word."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    pieces = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġc", "at", "Ġcat"]
    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    tokenizer = ByteLevelBPETokenizer(vocabulary, [("Ġ", "c"), ("a", "t"), ("Ġc", "at")])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    tokenizer.add_special_tokens(special)
    make_backbone_folder(folder, "roberta", vocab_size=len(pieces))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """Bundles with prompts, of both ways in which most models split words, and their folders, one by the command."""
    root = tmp_path_factory.mktemp("models")
    words, letters = (backbone_of(make(root / make.__name__)) for make in (with_words, with_bytes))
    bundle_of(make_encoder(words, "key_value", pooler="mean"), root / "data/bundle")
    bundle_of(make_encoder(letters, "hidden_state", pooler="last", mlp="always"), root / "bytes")
    work(root, shlex.split(COMMAND)[1:])
    shutil.copytree(root / "data/browser", root / "models/tickets")
    export_folder(str(root / "bytes"), root / "models/bytes", tolerance=1e-5)
    return root


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> Iterator[Path]:
    """A folder in which the library is installed; it is large, so it goes afterwards."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("needs node and npm")
    folder = tmp_path_factory.mktemp("npm")
    install = ["npm", "install", "--prefix", folder, "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run([*install, "@huggingface/transformers@4"], capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"npm cannot install the library: {done.stderr[-200:]}")
    yield folder / "node_modules"
    shutil.rmtree(folder)


@pytest.fixture
def address(models, packages) -> Iterator[str]:
    """A site on loopback: the page's script, the models, the library and its WebAssembly."""
    keep = "Object.assign(window, {pipeline, found: vectors.tolist()});"
    (models / "index.html").write_text(f'{HEAD}<script type="module">{SCRIPT}{keep}</script>')
    (models / "transformers.js").symlink_to(packages / "@huggingface/transformers/dist/transformers.min.js")
    (models / "ort").symlink_to(packages / "onnxruntime-web/dist")
    handler = partial(SimpleHTTPRequestHandler, directory=models)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


CASES = [("tickets", "cls"), ("tickets", "mean"), ("bytes", "last_token")]


@pytest.mark.slow
def test_chromium_gives_the_vectors_of_the_bundle(models, address):
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    said = []
    with playwright.sync_playwright() as started:
        # no sandbox: a container's root may not have one
        page = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]).new_page()
        page.on("console", lambda line: said.append(line.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda asked: asked.url.startswith((address, "blob:", "data:")) or said.append(asked.url))
        page.goto(address)
        page.wait_for_function("window.found", timeout=120_000)
        shown = page.evaluate("found")
        found = [page.evaluate(ENCODE, [name, pooling, TEXTS]) for name, pooling in CASES]
    questions = ["Where is my card?", "My card has not come."]
    assert all(question in SCRIPT for question in questions)
    for name, texts, vectors in (
        ("tickets", questions, shown),
        *((name, TEXTS, each) for (name, _), each in zip(CASES, found, strict=True)),
    ):
        bundle = {"tickets": models / "data/bundle", "bytes": models / "bytes"}[name]
        expected = OnnxEncoder(bundle, provider="cpu").encode(texts, normalize=True)
        np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert said == ["[Array(32), Array(32)]"], "a warning, or a request to another host"
