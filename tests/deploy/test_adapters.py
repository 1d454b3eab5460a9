"""Biases and LoRA by row behind the server: requests for different domains share batches, and none gets another's."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest

from cse.export.bank import create_bank, make_domain
from cse.export.domains import add_domain
from cse.runtime.bank import Bank
from tests.deploy.servers import serving
from tests.export.banks import make_adapted

TEXTS = ["the cat sits on the mat", "a dog", "two small birds eat red apple bread near the old river"]
DOMAINS = {"legal": ("lora", 0), "support": ("biases", 3), "tickets": ("prompts", 4), "plain": ("prompts", 0)}


@pytest.fixture(scope="module")
def made(tiny_folders, tmp_path_factory):
    """A bank and the encoders of its domains; do not change it."""
    bank = tmp_path_factory.mktemp("adapters") / "bank"
    encoders = {
        name: make_adapted(tiny_folders["bert"], trained, prompt=prompt, seed=seed)
        for seed, (name, (trained, prompt)) in enumerate(DOMAINS.items())
    }
    create_bank(encoders["plain"], bank, tolerance=1e-5, adapters=["all"])
    for name, encoder in encoders.items():
        add_domain(bank, make_domain(encoder, name, bank=Bank(bank).manifest))
    return bank, encoders


def ask(client, name):
    """The vectors of the texts from a domain, as the OpenAI client gets them."""
    return np.array([item.embedding for item in client.embeddings.create(model=name, input=TEXTS).data])


def test_many_clients_of_different_domains_get_their_own_vectors(made, tmp_path):
    bank, encoders = made
    with serving(bank, "--threads", 2, log=tmp_path / "log") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="-")
        names = list(DOMAINS) * 12
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda name: ask(client, name), names))
    expected = {name: encoder.encode(TEXTS) for name, encoder in encoders.items()}
    for name, vectors in zip(names, found, strict=True):
        np.testing.assert_allclose(vectors, expected[name], atol=1e-5, err_msg=name)
        assert name == "plain" or np.abs(vectors - expected["plain"]).max() > 0.01


@pytest.mark.parametrize("name", ["legal", "support"])
def test_a_server_of_prompts_alone_never_answers_for_an_adapter(name, made, empty_banks, tmp_path):
    """Vectors of the bare backbone in the adapter's name would be wrong without a sign of it."""
    bank = shutil.copytree(empty_banks("bert"), tmp_path / "bank")
    for one in (name, "plain"):
        shutil.copy(made[0] / f"domains/{one}.safetensors", bank / "domains")
    with serving(bank, log=tmp_path / "log") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0)
        np.testing.assert_allclose(ask(client, "plain"), made[1]["plain"].encode(TEXTS), atol=1e-5)
        with pytest.raises(openai.InternalServerError, match=f"503 - model '{name}': .* the log says how"):
            ask(client, name)
        assert "this one takes prompts alone" in server.log.read_text()
