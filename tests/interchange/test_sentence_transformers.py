"""Folders for sentence-transformers: the same numbers, the prompts in force or a refusal, saved again, trained on; and
its evaluators on our encoders as they are.
"""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from transformers import AutoModel

from cse.data.tasks.store import write_tasks
from cse.errors import CseError
from cse.interchange.importing import import_model
from cse.interchange.peft import export_adapter
from cse.model.checkpoint import save_checkpoint
from cse.model.declared import PROMPTS, Declared
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.onnx_encoder import OnnxEncoder
from tests.export.exports import Exported, bundle_of
from tests.export.systems import SENTENCES
from tests.model.families import CASES, make_family_folder
from tests.pages.blocks import run_by
from tests.parts import backbone_of, new_prompt, refusal, sentence_encoder
from tests.rows import write_objects
from tests.sides import PARTS as SIDES
from tests.sides import query_side
from tests.stages.test_dev_task import labelled
from tests.tiny import WORDS, make_backbone_folder

pytest.importorskip("sentence_transformers")
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import evaluation
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

from cse.interchange.prompted_transformer import PROMPT
from cse.interchange.sentence_transformers import export_sentence_transformers

CONFIG = "sentence_bert_config.json"
# what a model may have beside a prompt of keys and values in every layer
PARTS = {
    "hidden states, cls": ("bert", "hidden_state", {"pooler": "cls"}),
    "shared, positions from 0": ("roberta", "key_value", {"pooler": "mean", "position_shift": False}),
    "trained [CLS]": ("bert", "key_value", {"pooler": "mean", "cls": True}),
    "trained [CLS] alone": ("roberta", None, {"pooler": "cls", "cls": True}),
    "projector": ("bert", "key_value", {"pooler": "cls", "mlp": "always"}),
    "projector of the loss": ("bert", "key_value", {"pooler": "mean", "mlp": "train_only"}),
    "whitening": ("bert", "key_value", {"pooler": "mean", "post": "whitening"}),
    "projector and discriminant": ("bert", "hidden_state", {"pooler": "cls", "mlp": "always", "post": "discriminant"}),
    "last token": ("bert", "key_value", {"pooler": "last"}),
    "LoRA and prompt": ("bert", "key_value", {"pooler": "mean", "trained": "lora", "lora_rank": 2}),
    "whole model and prompt": ("roberta", "key_value", {"pooler": "mean", "trained": "full"}),
}


def write(encoder, folder: Path, **options) -> Exported:
    options = {"normalize": True, "tolerance": 1e-5} | options
    export_sentence_transformers(encoder, folder, SENTENCES, **options)
    return Exported(encoder, folder)


def opened(folder: Path | str, **options) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True, **options)


def trusted(folder: Path) -> SentenceTransformer:
    return opened(folder, trust_remote_code=True)


@pytest.fixture(scope="module")
def tiny(encoders, tmp_path_factory) -> Exported:
    """A tiny BERT with a prompt; do not change its folder."""
    return write(encoders("bert", pooler="mean"), tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def copied(tiny, tmp_path) -> Path:
    """A copy of its folder, to change at will."""
    return Path(shutil.copytree(tiny.folder, tmp_path / "copied"))


def same(written: Exported, model: SentenceTransformer) -> None:
    expected = written.encoder.encode(SENTENCES)
    for batch_size in (1, 3, 64):
        np.testing.assert_allclose(model.encode(SENTENCES, batch_size=batch_size), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("case", CASES)
def test_every_family_gives_the_same_vectors(encoders, tmp_path, case):
    written = write(encoders(case), tmp_path / "model")
    same(written, trusted(written.folder))
    bare = sentence_encoder(written.encoder.backbone, pooler=written.encoder.pooler).encode(SENTENCES)
    assert np.abs(written.encoder.encode(SENTENCES) - bare).max() > 0.02, "the prompt is in force"


@pytest.mark.parametrize("part", PARTS)
def test_what_else_a_model_has(encoders, tmp_path, part):
    family, kind, options = PARTS[part]
    written = write(encoders(family, kind, **options), tmp_path / "model", normalize=False)
    model = trusted(written.folder)
    found = model.encode(SENTENCES)
    np.testing.assert_allclose(found, written.encoder.encode(SENTENCES, normalize=False), atol=1e-5, rtol=0)
    frozen = not any(weight.requires_grad for weight in model[0].transformer.parameters())
    assert frozen == written.encoder.frozen


def test_texts_of_roles_become_prompts_and_texts_are_cut_as_here(encoders, tmp_path):
    encoder, long = encoders("bert", pooler="mean"), "cat " * 100
    encoder.texts = {"query": "the old ", "document": ""}
    model = trusted(write(encoder, tmp_path / "model").folder)
    found = [model.encode("cat", prompt_name="query"), model.encode_query("cat"), *model.encode(["cat", long])]
    expected = encoder.encode(["the old cat", "the old cat", "cat", long])
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)
    assert model.preprocess(["cat"], prompt="the old ")["prompt_length"] == 3  # [CLS] the old
    assert (model.max_seq_length, model.similarity_fn_name) == (encoder.max_length, "cosine")


ADAPTED = [(case, {"trained": "full"}) for case in ("bert", "modernbert", "gemma3")]
ADAPTED += [(case, {"trained": "lora", "lora_rank": 2})
            for case in ("albert", "modernbert", "gte", "eurobert", "distilbert")]  # fmt: skip
ADAPTED += [("bert", {"pooler": "mean", "post": "discriminant"})]  # a layer before the scaling


@pytest.mark.parametrize(("case", "trained"), ADAPTED)
def test_a_model_without_prompts_becomes_an_ordinary_folder(encoders, tmp_path, case, trained):
    written = write(encoders(case, None, **trained), tmp_path / "model")
    assert not list(written.folder.glob("*.py"))
    same(written, opened(written.folder))
    bare = SentenceEncoder(encoders(case, None).backbone)
    assert "lora_rank" not in trained or not np.allclose(
        written.encoder.encode(SENTENCES), bare.encode(SENTENCES), atol=1e-2
    )


OTHER = r"prompt.safetensors: not the prompt that its config names \(SHA-256 differs\); "
SHAPES = r"has {'prompt': \(2, 2, 4, 5, 8\)}, the language model needs {'prompt': \(3, 2, 4, 5, 8\)}; "
# what becomes of the prompt's bytes, whether the config names the new ones, and what is said
DAMAGE = {
    "removed": (lambda content: None, False, "prompt.safetensors: missing; "),
    "changed": (lambda content: content[:-1] + bytes([content[-1] ^ 1]), False, OTHER),
    "not named": (lambda content: content, False, OTHER),
    "reshaped": (lambda content: save({"prompt": load(content)["prompt"][:2].contiguous()}), True, SHAPES),
    "renamed": (lambda content: save({"else": torch.zeros(1)}), True, "prompt.safetensors: has {'else': "),
    "garbled": (lambda content: b"{}", True, "prompt.safetensors: .*header"),
}


def test_what_has_no_place_there_is_named(encoders, tmp_path):
    for kind, options, reason in (
        ("input", {"pooler": "cls"}, "its input-layer prompt has no keys"),
        ("key_value", {"pooler": "mean_top2"}, "its pooler is mean_top2, not one of cls, mean, last"),
        (None, {"pooler": "mask", "template": {"text": "the {sentence} is {mask} ."}}, "its template puts words"),
        ("key_value", {"pooler": "mean", "post": "flow"}, "it has post-processing (flow)"),
        ("key_value", {"mlp": "always", "projector": "batch_norm"}, "its projector is batch_norm, not tanh"),
    ):
        said = refusal(write, encoders("bert", kind, **options), tmp_path / "model")
        assert f"because {reason}" in said and said.endswith("; use --format onnx")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_gives_other_vectors_is_not_published(encoders, tmp_path, monkeypatch):
    from cse.interchange import sentence_transformers as module

    stacked = module.stacked_prefix
    monkeypatch.setattr(module, "stacked_prefix", lambda encoder: stacked(encoder) + 0.1)
    said = refusal(write, encoders("bert", pooler="mean"), tmp_path / "model")
    assert "sentence-transformers differs from torch by " in said and "; nothing was published" in said
    assert not list(tmp_path.iterdir())


MOVE = """
import sys
sys.modules["cse"] = None  # not needed
from sentence_transformers import SentenceTransformer
SentenceTransformer(sys.argv[1], trust_remote_code=True, device="cpu").save_pretrained(sys.argv[2])
"""


@pytest.mark.slow
def test_it_moves_without_this_project(tiny, copied, tmp_path):
    subprocess.run([sys.executable, "-c", MOVE, copied, tmp_path / "moved"], cwd=tmp_path, check=True, timeout=300)
    shutil.rmtree(copied)
    same(tiny, trusted(tmp_path / "moved"))
    assert (tmp_path / "moved" / PROMPT).read_bytes() == (tiny.folder / PROMPT).read_bytes()


@pytest.mark.slow
def test_it_loads_by_its_name_on_the_hub(tiny, tmp_path):
    """From the hub's cache, whose layout this is."""
    commit, place = "0123456789" * 4, tmp_path / "models--me--tiny"
    shutil.copytree(tiny.folder, place / "snapshots" / commit)
    (place / "refs").mkdir()
    (place / "refs/main").write_text(commit)
    same(tiny, opened("me/tiny", cache_folder=str(tmp_path), trust_remote_code=True))
    (place / "snapshots" / commit / PROMPT).unlink()
    with pytest.raises(ValueError, match=r"me/tiny/prompt\.safetensors: missing"):
        opened("me/tiny", cache_folder=str(tmp_path), trust_remote_code=True)


def test_the_prompt_alone_is_trained_on(copied, tmp_path):
    pytest.importorskip("accelerate")
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    torch.manual_seed(0)
    model = trusted(copied)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    rows = Dataset.from_dict({"anchor": [*SENTENCES[3:6], "cat"], "positive": SENTENCES[:2] + SENTENCES[4:6]})
    arguments = SentenceTransformerTrainingArguments(
        tmp_path / "run", max_steps=2, learning_rate=0.05, report_to=[], save_strategy="no", use_cpu=True
    )
    SentenceTransformerTrainer(model, arguments, rows, loss=MultipleNegativesRankingLoss(model)).train()
    moved = [name for name, weight in model.state_dict().items() if not torch.equal(weight, before[name])]
    assert moved == ["0.prompt"]
    model.save_pretrained(str(tmp_path / "later"))
    assert np.array_equal(trusted(tmp_path / "later").encode(SENTENCES), model.encode(SENTENCES))


TEXTS = [*SENTENCES, "two small birds eat red apple bread near the old river " * 5]


@pytest.mark.parametrize("parts", SIDES)
def test_both_sides_give_the_encoders_vectors(tmp_path, parts):
    folder = make_backbone_folder(tmp_path / "e5", "bert")
    if parts == "prompt":
        write_objects(folder / PROMPTS, [{"prompts": {"query": "the query ", "passage": "the book "}}])
    encoder = query_side(backbone_of(folder), **SIDES[parts])
    export_sentence_transformers(encoder, tmp_path / "model", TEXTS, normalize=True, tolerance=1e-5)
    model = trusted(tmp_path / "model")
    np.testing.assert_allclose(model.encode_query(TEXTS), encoder.encode(TEXTS, role="query"), atol=1e-5)
    documents = encoder.encode(TEXTS, role="passage" if parts == "prompt" else None)
    np.testing.assert_allclose(model.encode_document(TEXTS), documents, atol=1e-5)
    np.testing.assert_allclose(model.encode(TEXTS), encoder.encode(TEXTS), atol=1e-5)
    weights = [path for path in (tmp_path / "model").rglob("model.safetensors") if path.stat().st_size > 50_000]
    assert len(weights) == 1, "both sides share the language model"
    assert (list((tmp_path / "model").rglob("*.py")) == []) == (parts == "map"), "a map alone needs no code"
    said = refusal(import_model, tmp_path / "model", "sentence-transformers", str(folder), tmp_path / "out")
    assert "a Router" in said and "two sides are not read back" in said
    if parts == "prompt":
        said = refusal(export_adapter, encoder, tmp_path / "adapter", TEXTS, tolerance=1e-5)
        assert "because its prompt is for queries alone" in said


@pytest.mark.parametrize("damage", DAMAGE)
def test_without_its_prompt_or_code_a_model_does_not_load(copied, damage):
    change, named, said = DAMAGE[damage]
    config = json.loads((copied / CONFIG).read_text())
    if (content := change((copied / PROMPT).read_bytes())) is None:
        (copied / PROMPT).unlink()
    else:
        (copied / PROMPT).write_bytes(content)
        if named:
            config["prompt"] = hashlib.sha256(content).hexdigest()
    if damage == "not named":
        del config["prompt"]
    (copied / CONFIG).write_text(json.dumps(config))
    with pytest.raises(ValueError, match=said) as caught:
        trusted(copied)
    assert str(caught.value).endswith("(without its prompt it would be the bare language model)")
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        opened(copied)
    with pytest.raises((OSError, ValueError)):
        AutoModel.from_pretrained(copied)


@pytest.fixture(scope="module")
def with_layers(tmp_path_factory) -> Path:
    """A Gemma 3 that reads both ways, a mean, and two layers behind it, as EmbeddingGemma has them."""
    place = tmp_path_factory.mktemp("dense")
    bare = sentence_encoder(backbone_of(make_family_folder(place / "family", "gemma3, both ways")), pooler="mean")
    write(bare, place / "bare", normalize=False)
    torch.manual_seed(0)
    wide = Dense(32, 128, bias=False, activation_function=torch.nn.Identity())
    narrow = Dense(128, 48, bias=True, activation_function=torch.nn.Tanh())
    modules = [*opened(place / "bare"), wide, narrow, Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(place / "model"), create_model_card=False)
    return place / "model"


def test_layers_behind_the_pooling_are_read_and_written_everywhere(with_layers, tmp_path):
    theirs = opened(with_layers).encode(SENTENCES)
    assert theirs.shape[1] == 48
    np.testing.assert_allclose(SentenceEncoder.load(with_layers).encode(SENTENCES), theirs, atol=1e-5)
    backbone = backbone_of(with_layers)
    encoder = sentence_encoder(backbone, new_prompt("key_value", backbone, length=3, init_std=0.7))
    vectors = encoder.encode(SENTENCES)
    assert np.abs(vectors - theirs).max() > 0.01
    (tmp_path / "checkpoint").mkdir()
    save_checkpoint(encoder, tmp_path / "checkpoint")
    np.testing.assert_array_equal(SentenceEncoder.load(tmp_path / "checkpoint").encode(SENTENCES), vectors)
    bundle = bundle_of(encoder, tmp_path / "bundle")
    np.testing.assert_allclose(bundle.encode(SENTENCES), vectors, atol=1e-5)
    model = trusted(write(encoder, tmp_path / "folder").folder)
    np.testing.assert_allclose(model.encode(SENTENCES), vectors, atol=1e-5)
    kinds = [type(module).__name__ for module in model]
    assert kinds == ["PromptedTransformer", "Pooling", "Dense", "Dense", "Normalize"]


def test_a_layer_of_another_kind_is_refused(with_layers, tmp_path):
    config = shutil.copytree(with_layers, tmp_path / "model") / "2_Dense/config.json"
    own = json.loads(config.read_text())
    for changed, said in (
        ({"activation_function": "my.Swish"}, "has the activation my.Swish"),
        ({"module_input_name": "token_embeddings"}, "has another input"),
    ):
        config.write_text(json.dumps(own | changed))
        assert f"2_Dense {said}; to use the transformer alone" in refusal(SentenceEncoder.load, tmp_path / "model")


# ---- evaluators, and a classifier beside the model -------------------------------------------------------------------

ROLES = {"query": "the old ", "document": "a red "}
(BLOCK,) = run_by("docs/interchange.md", __file__)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The library's model of a tiny BERT, and ours, as torch and as ONNX."""
    root = tmp_path_factory.mktemp("model")
    folder = make_backbone_folder(root / "bert", "bert", pooling="mean")
    encoder = sentence_encoder(backbone_of(folder), use=Declared("mean", None, ROLES, (8, 16)))
    onnx = bundle_of(encoder, root / "bundle")
    known = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "model_max_length": 40}
    (folder / "tokenizer_config.json").write_text(json.dumps(known))
    parts = [Transformer(str(folder)), Pooling(32, "mean"), Normalize()]
    theirs = SentenceTransformer(modules=parts, prompts=ROLES, device="cpu")
    return theirs, {"torch": encoder, "onnx": onnx}


def drawn(count, seed):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, int(rng.integers(2, 8)))) for _ in range(count)]


A, B, C = (drawn(30, seed) for seed in range(3))
RELEVANT = {f"q{i}": {f"d{i}", f"d{(7 * i) % 30}"} for i in range(30)}
QUERIES, DOCUMENTS = ({f"{side}{i}": text for i, text in enumerate(texts)} for side, texts in (("q", A), ("d", B)))


@pytest.mark.parametrize("kind", ["torch", "onnx"])
def test_an_evaluator_says_of_ours_what_it_says_of_theirs(both, kind):
    theirs, ours = both
    for evaluator in (
        evaluation.EmbeddingSimilarityEvaluator(A, B, np.linspace(0, 1, 30).tolist(), name="x", truncate_dim=8),
        evaluation.TripletEvaluator(A, B, C, name="x"),
        evaluation.InformationRetrievalEvaluator(QUERIES, DOCUMENTS, RELEVANT, name="x"),
    ):
        expected, found = dict(evaluator(theirs)), dict(evaluator(ours[kind]))
        assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kind", ["torch", "onnx"])
def test_the_librarys_words_mean_ours(both, kind):
    encoder = both[1][kind]
    words = {"prompt_name": "query", "truncate_dim": 8, "normalize_embeddings": True, "convert_to_tensor": True}
    as_tensor = encoder.encode(A, **words)
    assert isinstance(as_tensor, torch.Tensor)
    np.testing.assert_array_equal(as_tensor.numpy(), encoder.encode(A, role="query", dimensions=8, normalize=True))
    raw = encoder.encode(A, normalize_embeddings=False)
    np.testing.assert_array_equal(raw, encoder.encode(A, normalize=False))
    assert not np.allclose(np.linalg.norm(raw, axis=1), 1, atol=0.01)
    np.testing.assert_array_equal(encoder.encode_query(A), encoder.encode(A, role="query"))
    np.testing.assert_array_equal(encoder.encode_document(A[0]), encoder.encode("a red " + A[0]))
    np.testing.assert_array_equal(encoder.encode(A, prompt="a red "), encoder.encode(A, role="document"))
    for word in ({"precision": "int8"}, {"device": "cuda"}, {"output_value": "token_embeddings"}):
        with pytest.raises(CseError, match=f"{next(iter(word))}: .* is not possible here"):
            encoder.encode(A, **word)
    with pytest.raises(TypeError, match="nonsense"):
        encoder.encode(A, nonsense=1)


def test_the_lines_of_the_page_tell_what_the_bundle_tells(cse, project, capsys):
    task = labelled()
    write_tasks(project / "data/prepared", dev=task, test=[], own=[])
    to = ("--format", "sentence-transformers", "--out")
    done = cse("export", *to, "data/intents")
    assert done.code == 0 and "classifier of 4 labels" in done.out, done.err
    assert cse("export", "--out", "data/classifying").code == 0
    (told,) = OnnxEncoder("data/classifying", provider="cpu").classify(task.test[:1])
    capsys.readouterr()
    exec(BLOCK.text.replace("I have lost my card", task.test[0]), {})
    assert capsys.readouterr().out == f"['{told.label}']\n"

    given = cse("export", *to, "data/given", "--classifier", "data/classifying")
    assert given.code == 0 and "classifier of 4 labels" in given.out, given.err
    mine, theirs = (project / f"data/{name}/classifier.safetensors" for name in ("given", "classifying"))
    assert mine.read_bytes() == theirs.read_bytes()
    for words, says in (
        (("--format", "peft", "--out", "x"), "--classifier: an adapter has none"),
        (("--out", "x"), "--classifier: a bundle makes its own"),
        ((*to, "x", "--classifier", "data/bundle"), "data/bundle: no classifier; make one with"),
    ):
        assert says in cse("export", *words, *(() if "--classifier" in words else ("--classifier", "x"))).refused()
