"""Clients of the service: each example of docs/serve.md as it stands there, and the libraries they use."""

import json
import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from cse.runtime.onnx_encoder import OnnxEncoder
from tests.deploy.servers import metric_names, serving
from tests.pages.blocks import printed, run_by
from tests.runtime.conftest import DIMENSION, write_bundle_of_words

PAGE = (Path(__file__).parents[2] / "docs/serve.md").read_text("utf-8")
ADDRESS = "http://127.0.0.1:8080"
BLOCKS = run_by("docs/serve.md", __file__)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
CARD, COME, LOAN = "Where is my card?", "My card has not come.", "I want a loan."


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    """A bundle of the id that the page uses, which knows the words of the page: no two of its texts are alike."""
    return write_bundle_of_words(tmp_path_factory.mktemp("clients") / "bundle", (CARD, COME, LOAN))


@pytest.fixture(scope="module")
def encode(bundle):
    return OnnxEncoder(bundle, provider="cpu").encode


@pytest.fixture(scope="module")
def service(bundle, tmp_path_factory):
    with serving(bundle, "--threads", 2, log=tmp_path_factory.mktemp("log") / "log") as found:
        yield found


def of_curl(output: str) -> list[float]:
    answer = json.loads(output)
    return answer if isinstance(answer, list) else [one for item in answer["data"] for one in item["embedding"]]


def numbers(output: str) -> list[float]:
    return [float(number) for number in NUMBER.findall(output)]


# for each example: a part of it that no other has, how its output is read, and what it prints
EXAMPLES = {
    "curl": ("8080/v1/embeddings -H", of_curl, lambda encode: encode([CARD, COME]).ravel()),
    "curl, Cohere": (
        "8080/v2/rerank",
        lambda output: [one["relevance_score"] for one in json.loads(output)["results"]],
        lambda encode: np.sort(encode([COME, LOAN]) @ encode(CARD))[::-1],
    ),
    "curl, TEI": ("8080/similarity", of_curl, lambda encode: encode([COME, LOAN]) @ encode(CARD)),
    "huggingface_hub": (
        "InferenceClient(",
        numbers,
        lambda encode: [2, DIMENSION, *encode([COME, LOAN]) @ encode(CARD)],
    ),
    "openai": ("from openai", numbers, lambda encode: [3, DIMENSION, *encode([CARD, COME, LOAN]) @ encode(CARD)]),
    "httpx": ("httpx.post", numbers, lambda encode: [2, DIMENSION, 0, encode(CARD) @ encode(LOAN)]),
    "javascript": ("await fetch", numbers, lambda encode: [DIMENSION, encode(CARD) @ encode(LOAN)]),
    "langchain": ("from langchain_openai", numbers, lambda encode: encode([COME, LOAN]) @ encode(CARD)),
    "llamaindex": ("from llama_index", numbers, lambda encode: encode([COME, LOAN]) @ encode(CARD)),
}
# libraries that take seconds to import
NEEDS = {"langchain": "langchain_openai", "llamaindex": "llama_index"}
assert len(BLOCKS) == len(EXAMPLES), "every example is tested"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in NEEDS else []) for name in EXAMPLES]
)
def test_the_example_works(name, service, encode, tmp_path, monkeypatch):
    if name in NEEDS and find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    part, read, wanted = EXAMPLES[name]
    (block,) = [block for block in BLOCKS if part in block.text]
    assert ADDRESS in block.text
    text = block.text.replace(ADDRESS, service.url)
    if block.language == "python":
        for variable in [variable for variable in os.environ if variable.startswith("OPENAI_")]:
            monkeypatch.delenv(variable)
        said = printed(text, tmp_path)
    else:
        command = ["bash", "-s"] if block.language == "bash" else ["node", "--input-type=module", "-"]
        if shutil.which(command[0]) is None:
            pytest.skip(f"{command[0]} is not installed")
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        said = done.stdout
    np.testing.assert_allclose(read(said), wanted(encode), atol=1e-5)


def test_the_metrics_and_routes_on_the_page_are_those_of_the_server(service):
    listed = set(re.findall(r"`(cse_\w+)", PAGE))
    assert listed == {re.sub(r"_(bucket|sum|count)$", "", name) for name in metric_names()}
    routes = set(service.get("/openapi.json").json()["paths"]) | {"/", "/metrics", "/docs", "/openapi.json"}
    table = PAGE.partition("## Routes")[2].partition("## Clients")[0]
    assert routes <= set(re.findall(r"(?<=[ `])/[\w/.]*(?=`)", table))
    assert all(service.get(route).status_code == 200 for route in ("/", "/docs", "/metrics", "/ready"))
