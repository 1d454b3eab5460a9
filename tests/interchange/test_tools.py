"""Other tools with this project's models and vectors: each example of docs/interchange.md as it stands there."""

import json
import os
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from cse.runtime.onnx_encoder import OnnxEncoder
from tests.cli.workspace import work
from tests.pages.blocks import printed, run_by
from tests.runtime.conftest import write_bundle_of_words

BLOCKS = run_by("docs/interchange.md", __file__)
CODE = [block.text for block in BLOCKS if block.language == "python"]
COMMANDS = [
    shlex.split(command, comments=True) for block in BLOCKS if block.language == "sh" for command in block.commands()
]
CARD, COME, LOAN = "Where is my card?", "My card has not come.", "I want a loan."
CORPUS = [LOAN, "the cat sat on a mat", COME, "a dog", "Where is the dog?", "zebra", "My loan has come.", "a card"]
TEXTS = {"query": "query: ", "passage": "passage: "}
# for each example: a part of it that no other has, and the library it needs
EXAMPLES = {
    "langchain": ("from langchain_core.embeddings", "langchain_core"), "haystack": ("from haystack ", "haystack"),
    "llamaindex": ("from llama_index", "llama_index.core"), "duckdb": ("import duckdb", "duckdb"),
    "polars": ("import polars", "polars"), "lancedb": ("table.search(query)", "lancedb"),
    "langchain retriever": ("from langchain_core.retrievers", "langchain_core"),
}  # fmt: skip
assert len(CODE) == len(EXAMPLES), "every example is tested"
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "false"  # read when it is imported


def run_example(name: str, folder: Path) -> list[tuple[str, float, str]]:
    """Run an example in a folder and return its lines: row if it prints one, cosine, text."""
    part, library = EXAMPLES[name]
    if find_spec(library.partition(".")[0]) is None or find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    (code,) = [code for code in CODE if part in code]
    lines = printed(code, folder).splitlines()
    found = [re.fullmatch(r"(?:(\d+) )?(-?\d\S*) (.+)", line).groups() for line in lines]
    return [(row, float(cosine), text) for row, cosine, text in found]


@pytest.fixture(scope="module", params=[{}, TEXTS, {"query": "query: "}], ids=["no texts", "two texts", "one text"])
def with_bundle(request, tmp_path_factory) -> Path:
    """A folder with a bundle that has task texts for some roles."""
    folder = tmp_path_factory.mktemp("tools")
    write_bundle_of_words(folder / "data/bundle", [CARD, COME, LOAN, *TEXTS.values()], texts=request.param)
    return folder


@pytest.fixture(scope="module")
def with_vectors(tmp_path_factory) -> Path:
    """A folder after the page's commands."""
    folder = tmp_path_factory.mktemp("tools")
    write_bundle_of_words(folder / "data/bundle", [CARD, *CORPUS])
    (folder / "sentences.txt").write_text("".join(f"{text}\n" for text in CORPUS), encoding="utf-8")
    work(folder, *([*words[1:], "--device", "cpu"] for words in COMMANDS))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["langchain", "llamaindex", "haystack"])
def test_a_library_ranks_by_the_models_vectors(name, with_bundle):
    found = run_example(name, with_bundle)
    encoder = OnnxEncoder(with_bundle / "data/bundle", provider="cpu")
    query, passage = (role if role in encoder.texts else None for role in TEXTS)
    cosines = encoder.encode([COME, LOAN], role=passage) @ encoder.encode(CARD, role=query)
    expected = sorted(zip(cosines, (COME, LOAN), strict=True), reverse=True)
    assert [text for _, _, text in found] == [text for _, text in expected]
    np.testing.assert_allclose([cosine for _, cosine, _ in found], [cosine for cosine, _ in expected], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["duckdb", "polars", "lancedb"])
def test_a_tool_finds_the_nearest_rows(name, with_vectors):
    found = run_example(name, with_vectors)
    encoder = OnnxEncoder(with_vectors / "data/bundle", provider="cpu")
    cosines = encoder.encode(CORPUS) @ encoder.encode(CARD)
    nearest = np.argsort(-cosines)[:3]
    assert [(int(row), text) for row, _, text in found] == [(row, CORPUS[row]) for row in nearest]
    np.testing.assert_allclose([cosine for _, cosine, _ in found], cosines[nearest], atol=1e-5)


@pytest.mark.slow
def test_a_retriever_finds_what_cse_search_finds(cse, with_vectors, monkeypatch):
    found = run_example("langchain retriever", with_vectors)
    monkeypatch.chdir(with_vectors)
    hits = json.loads(cse("search", "data/vectors", CARD, "-k", "3", "--json").out)["hits"]
    assert hits[0]["text"] == COME, "it shares two words: my, card"
    assert [(int(row), text) for row, _, text in found] == [(hit["id"], hit["text"]) for hit in hits]
    np.testing.assert_allclose([score for _, score, _ in found], [hit["score"] for hit in hits], atol=1e-5)
