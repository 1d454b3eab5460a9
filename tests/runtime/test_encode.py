"""Sentences to vectors: batches and mistakes, a bundle's graph beside numpy, the provider and threads that run it."""

import logging
import random
import re
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from tokenizers import processors

from cse.runtime import session
from cse.runtime.bundle import MODEL, TOKENIZER
from cse.runtime.encode import cosine_similarity, encode_prepared, prepare_sentences
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.session import no_cuda_reason, open_graph, usable_cpus
from cse.runtime.tokens import Tokenizers
from tests.parts import refusal

from .conftest import DIMENSION, MAX_LENGTH, PAD, WORDS, make_table, make_tokenizer, masked_mean, reseal, write_model

SENTENCES = ["the cat sat", "a dog", "the cat sat", "", "mat", "a dog sat on the mat", "zebra", "a dog"]


def encode(sentences, embed=masked_mean, tokenizer=None, **options):
    options = {"dimension": DIMENSION, "max_length": MAX_LENGTH, "pad_id": PAD, "normalize": False} | options
    tokenizers = Tokenizers(tokenizer or make_tokenizer())
    ours = {name: options.pop(name) for name in ("max_length", "before") if name in options}

    def of_rows(ids, mask, domains):
        assert domains == []
        return embed(ids, mask)

    prepared = prepare_sentences(sentences, tokenizers=tokenizers, **ours)
    return encode_prepared(prepared, embed=of_rows, **options).warned()


@pytest.mark.parametrize(("batch_size", "batch_tokens", "workers"), [(1, None, 1), (4, 9, 1), (2, None, 3), (64, 1, 2)])
def test_no_way_of_batching_changes_the_result(batch_size, batch_tokens, workers):
    words = random.Random(0)
    texts = [" ".join(words.choices(["the", "cat", "dog", "sat"], k=words.randrange(5))) for _ in range(60)]
    found = encode(texts, batch_size=batch_size, batch_tokens=batch_tokens, workers=workers)
    np.testing.assert_allclose(found, encode(texts), atol=1e-6)


def given(embed):
    """The batches of ids and masks that a model was given."""
    return [call.args for call in embed.call_args_list]


def test_each_distinct_sentence_is_encoded_once_in_bounded_batches_of_like_length():
    encode(SENTENCES, embed := Mock(side_effect=masked_mean), batch_size=2)
    assert sum(len(ids) for ids, _ in given(embed)) == len(set(SENTENCES)) == 6
    assert [ids.shape for ids, _ in given(embed)] == [(2, 6), (2, 4), (2, 3)], "sorted, padded to the longest row"
    for ids, mask in given(embed):
        assert ids.dtype == mask.dtype == np.int64
        assert (ids[mask == 0] == PAD).all()
        assert (mask.sum(axis=1).max()) == ids.shape[1]
    encode(SENTENCES, embed := Mock(side_effect=masked_mean), batch_tokens=8)
    assert all(ids.size <= 8 for ids, _ in given(embed))
    for padding in (0, 1, 2):
        found = encode(SENTENCES, embed := Mock(side_effect=masked_mean), batch_padding=padding)
        np.testing.assert_allclose(found, encode(SENTENCES), atol=1e-6)
        assert max(int((mask.shape[1] - mask.sum(axis=1)).max()) for _, mask in given(embed)) <= padding


def test_text_without_any_token_is_a_masked_column():
    bare, embed = make_tokenizer(), Mock(side_effect=masked_mean)
    bare.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    found = encode([""], embed, tokenizer=bare, normalize=True)
    ((ids, mask),) = given(embed)
    assert ids.shape == (1, 1) and mask.sum() == 0
    assert (found == 0).all(), "a zero vector stays zero"


def test_truncation_keeps_the_special_tokens_and_is_counted_once(bundle, caplog):
    embed = Mock(side_effect=masked_mean)
    with caplog.at_level(logging.WARNING, "cse"):
        encode(["the cat sat on the mat", "the cat sat on"], embed)
    ((ids, _),) = given(embed)
    assert ids.shape == (2, MAX_LENGTH) and (ids[:, -1] == 3).all()
    assert [record.getMessage() for record in caplog.records] == ["1 of 2 distinct sentences were cut at 6 tokens"]
    caplog.clear()
    texts = ["the cat sat on the mat", "the cat", "the cat sat on the mat"]
    counted = OnnxEncoder(bundle, provider="cpu").encode_counting(texts)
    assert (counted.truncated, counted.distinct, counted.max_length) == (1, 2, MAX_LENGTH)
    assert caplog.records == []


WHOLE, TRUTH = "is not valid; give a whole number of at least 1", "normalize: expected True or False, found"
NO_TEXTS = (7, {"a dog", "cat"}, np.array("cat"), np.array([["cat", "dog"]]))


@pytest.mark.parametrize(
    ("sentences", "options", "message"),
    [
        *((bad, {}, f"sentences: expected a list of texts, found {type(bad).__name__}") for bad in NO_TEXTS),
        (["a dog", None], {}, r"sentences\[1\]: expected text, found NoneType; convert or drop it"),
        (["a dog", b"cat"], {}, r"sentences\[1\]: expected text, found bytes; convert or drop it"),
        *((["cat"], {"batch_size": bad}, f"batch_size: {bad!r} {WHOLE}") for bad in (0, True, "64")),
        *((["cat"], {"normalize": bad}, f"{TRUTH} {bad!r}") for bad in ("no", 0)),
        (["cat", "bad \ud800"], {}, r"text 'bad \\ud800': contains a lone surrogate; .*"),
        (["cat"], {"embed": lambda ids, _: np.zeros((1, 3), np.float32)}, r".* shape \(1, 3\) for 1 rows of width 8"),
        *((["cat", "the dog", "a bad dog", "mat", "a bad dog"], {"workers": workers},
           r"sentences\[2\]: .*text starts 'a bad dog'.*") for workers in (1, 2)),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(sentences, options, message):
    said = refusal(encode, sentences, **options)
    assert re.search(f"^{message}$", said) and said.isascii()


def test_similarity_equals_a_float64_reference_and_shapes_must_match():
    random_numbers = np.random.default_rng(1)
    a, b = random_numbers.normal(size=(5, 16)), random_numbers.normal(size=(7, 16)) * 1e3
    reference = np.array([[x @ y / np.sqrt((x @ x) * (y @ y)) for y in b] for x in a])
    found = cosine_similarity(a, b)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, reference, atol=1e-6)
    np.testing.assert_allclose(cosine_similarity(a[0], b), reference[:1], atol=1e-6)
    assert cosine_similarity(a[0], b[0]).shape == (1, 1)
    assert (cosine_similarity(np.zeros(4), np.ones((3, 4))) == 0).all()
    for wrong in (np.ones((2, 5)), None, [[1.0], [1.0, 2.0]], {"a": 1}):
        assert re.search(r"do not match|^similarity: ", refusal(cosine_similarity, np.ones((2, 4)), wrong))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_embeddings_equal_numpy_on_any_number_of_threads(bundle, threads):
    encoder = OnnxEncoder(bundle, provider="cpu", threads=threads)
    assert (encoder.dimension, encoder.max_length, encoder.provider) == (DIMENSION, MAX_LENGTH, "cpu")
    texts = [f"{text} {word}" for text in SENTENCES for word in WORDS[4:8]]
    assert len(texts) >= 4 * threads, "enough rows to be shared out"
    np.testing.assert_allclose(encoder.encode(texts, batch_size=2), encode(texts, normalize=True), atol=1e-6)
    np.testing.assert_allclose(encoder.encode(texts[:3]), encode(texts[:3], normalize=True), atol=1e-6)
    assert bool(encoder._one_core) == (threads > 1), "the second session is opened only when it is used"


@pytest.mark.parametrize("direction", ["right", "left"])
def test_rows_are_those_of_the_texts_where_the_tokenizer_pads_and_cuts(bundle, direction):
    tokenizer = make_tokenizer()
    tokenizer.enable_padding(length=20, direction=direction)
    tokenizer.enable_truncation(3)  # less than "[CLS] a [SEP]" has with one more
    tokenizer.save(str(bundle / TOKENIZER))
    reseal(bundle)
    encoder = OnnxEncoder(bundle, provider="cpu", threads=1)
    texts = ["a dog sat", "mat", "the cat sat on"]
    tokens = encoder.tokenize(texts)
    assert tokens.lengths.tolist() == [5, 3, 6]
    own = [[2, *(WORDS.index(word) for word in text.split()), 3] for text in texts]
    assert [tokens.row(index).tolist() for index in range(3)] == own
    rows = [tokens.row(index) for index in range(3)]
    wanted = encoder.encode(texts, normalize=False)
    np.testing.assert_allclose(encoder.embed_rows(rows), wanted, atol=1e-6)
    np.testing.assert_allclose(np.concatenate([encoder.embed_rows([row]) for row in rows]), wanted, atol=1e-6)


def test_rows_that_the_graph_cannot_take_are_one_line(bundle):
    """For instance more tokens than it has positions: here its table of words is too short."""
    write_model(bundle / MODEL, make_table()[:5])
    reseal(bundle)
    encoder = OnnxEncoder(bundle, provider="cpu", threads=1)
    assert encoder.encode("the").shape == (DIMENSION,)
    assert re.search(r"failed on 1 rows of 3 tokens: .*max_length 6\) is wrong$", refusal(encoder.encode, "mat"))


def test_a_file_that_is_no_tokenizer_and_a_broken_graph_are_named_without_noise(bundle, capfd):
    (bundle / TOKENIZER).write_text("{}")
    reseal(bundle)
    assert "tokenizer.json: not a tokenizer" in refusal(OnnxEncoder, bundle, provider="cpu")
    (bundle / MODEL).write_bytes((bundle / MODEL).read_bytes()[:100])
    assert "model.onnx: onnxruntime cannot load it" in refusal(open_graph, bundle / MODEL, "cpu")
    assert capfd.readouterr() == ("", "")


def test_a_gpu_that_does_not_attach_is_reported_in_one_line_without_noise(bundle, monkeypatch, capfd):
    """There is no driver; or there is, but its CUDA provider does not attach, and onnxruntime falls back silently."""
    reason, absent = "no NVIDIA driver: libcuda.so.1 does not load", bool(no_cuda_reason())
    monkeypatch.setattr(session, "no_cuda_reason", lambda: reason)
    attached = open_graph(bundle / MODEL, "auto", 2)
    assert (attached.provider, attached.note) == ("cpu", f"running on cpu ({reason}; 2 threads)")
    message = refusal(open_graph, bundle / MODEL, "cuda")
    assert re.search(r"^provider cuda did not attach: .*set provider: cpu$", message) and reason in message
    monkeypatch.setattr(session, "_CUDA", "CUDAExecutionProvider" if absent else "NoSuchExecutionProvider")
    monkeypatch.setattr(session, "no_cuda_reason", lambda: "")
    assert "could not load its CUDA libraries" in refusal(open_graph, bundle / MODEL, "cuda")
    assert open_graph(bundle / MODEL, "auto").provider == "cpu"
    assert capfd.readouterr() == ("", ""), "onnxruntime must not print its own errors"


@pytest.mark.parametrize(("choice", "expected"), [({}, "0"), ({"tf32": True}, "1")])
def test_a_gpu_multiplies_exactly_unless_tf32_is_chosen(bundle, monkeypatch, choice, expected):
    """From Ampere on onnxruntime's default is TF32: 1.4e-4 off torch on MiniLM, where parity allows 1e-5."""
    there = Mock(get_inputs=list, get_outputs=lambda: [SimpleNamespace(shape=["b", 8])])
    there.get_providers.return_value = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(session, "no_cuda_reason", lambda: "")
    monkeypatch.setattr(session.ort, "preload_dlls", lambda: None)
    monkeypatch.setattr(session.ort, "InferenceSession", asked := Mock(return_value=there))
    attached = open_graph(bundle / MODEL, "auto", 1, **choice)
    assert attached.provider == "cuda"
    assert ("TF32" in attached.note) == bool(choice)
    (given,) = asked.call_args_list
    assert given.kwargs["providers"] == [("CUDAExecutionProvider", {"use_tf32": expected}), "CPUExecutionProvider"]


def test_threads_follow_affinity_and_quota(monkeypatch, tmp_path):
    monkeypatch.setattr(session.os, "sched_getaffinity", lambda pid: set(range(12)), raising=False)
    for text, expected in (("max 100000", 12), ("250000 100000", 3), ("50000 100000", 1)):
        (tmp_path / "cpu.max").write_text(text)
        files = {"/sys/fs/cgroup/cpu.max": tmp_path / "cpu.max"}
        monkeypatch.setattr(session, "Path", lambda name, files=files: files.get(name, tmp_path / "absent"))
        assert usable_cpus() == expected
