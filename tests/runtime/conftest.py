"""A tiny bundle: an embedding table and the mean over real tokens, with a tokenizer of twelve words."""

import json

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from cse.artifact import Kind, hash_files, sealed
from cse.runtime.bundle import FORMAT, MANIFEST, MODEL, TOKENIZER, Manifest
from cse.runtime.domain import DOMAIN_FORMAT, DomainFacts, Shape

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "dog", "sat", "on", "a", "mat", "bad"]
DIMENSION, MAX_LENGTH, PAD = 8, 6, 0
BAD = WORDS.index("bad")


def make_tokenizer(more=()):
    words = dict.fromkeys([*WORDS, *more])
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def make_table():
    """The word "bad" has an infinite vector; [PAD] a large one, so that a mask left out shows."""
    table = np.random.default_rng(0).normal(size=(len(WORDS), DIMENSION)).astype(np.float32)
    table[PAD] = 100.0
    table[BAD] = np.inf
    return table


def masked_mean(ids, mask):
    """What the graph computes, in numpy: (b, l) and (b, l) to (b, d)."""
    vectors = np.where(mask[:, :, None] == 1, make_table()[ids], 0)
    return (vectors.sum(axis=1) / np.maximum(mask.sum(axis=1), 1)[:, None]).astype(np.float32)


# one text's vector is the mean of its words'
GRAPH = """
<ir_version: 10, opset_import: ["": 20]>
tiny (int64[b, l] input_ids, int64[b, l] attention_mask) => (float[b, 8] sentence_embedding)
<float zero = {0}, int64[1] one = {1}, int64[1] last = {-1}>
{
    tokens = Gather (table, input_ids)
    seen = Cast <to = 9> (attention_mask)
    column = Unsqueeze (seen, last)
    kept = Where (column, tokens, zero)
    total = ReduceSum <keepdims = 0> (kept, one)
    weights = Cast <to = 1> (column)
    count = ReduceSum <keepdims = 0> (weights, one)
    sentence_embedding = Div (total, count)
}
"""


def write_model(path, table=None):
    """Write the graph; ``table`` has other vectors of words."""
    model = onnx.parser.parse_model(GRAPH)
    model.graph.initializer.append(numpy_helper.from_array(make_table() if table is None else table, "table"))
    onnx.save(model, str(path))


def write_bundle(folder, tokenizer=None, *, table=None, metrics=None, **changes):
    """A bundle of texts of at most six tokens."""
    folder.mkdir(parents=True)
    write_model(folder / MODEL, table)
    (tokenizer or make_tokenizer()).save(str(folder / TOKENIZER))
    facts = {"name": "model", "backbone": "", "pooler": "mean", "normalize": True, "position_shift": 0, "words": 0}
    facts |= {"max_length": MAX_LENGTH, "width": DIMENSION, "hashes": {}}
    domain = DomainFacts(DOMAIN_FORMAT, **(facts | changes))
    Manifest(FORMAT, PAD, domain, Shape("", 0, 0, 0, DIMENSION, 0, 0), metrics=metrics or {}).write(folder)
    return folder


def write_bundle_of_words(folder, sentences, **fields):
    """A bundle that knows the words of the sentences: no two of them have the same vector."""
    split = pre_tokenizers.Whitespace()
    tokenizer = make_tokenizer(sorted({word for text in sentences for word, _ in split.pre_tokenize_str(text)}))
    vectors = np.random.default_rng(1).normal(size=(tokenizer.get_vocab_size(), DIMENSION)).astype(np.float32)
    return write_bundle(folder, tokenizer, table=vectors, max_length=16, **fields)


def edit(folder, **changes):
    """Change what a manifest says, also of shape and domain, and seal it: wrong from the start, not changed by hand."""
    tree = json.loads((folder / MANIFEST).read_text())
    for name, value in changes.items():
        places = [part for part in (tree, tree["shape"], tree["domain"]) if name in part] or [tree]
        places[0][name] = value
        if value is None:
            del places[0][name]
    (folder / MANIFEST).write_text(json.dumps(sealed(tree)))


def reseal(folder):
    """Let a manifest list the files of its folder as they are now."""
    edit(folder, files=hash_files(folder, Kind.BUNDLE))


@pytest.fixture
def bundle(tmp_path):
    return write_bundle(tmp_path / "bundle", metrics={"STS-B": 80.0})
