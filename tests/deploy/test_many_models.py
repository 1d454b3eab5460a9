"""A bank of many domains behind the server: its list by pages, keys that open some, and answers while files change."""

import asyncio
import shutil
import threading

import numpy as np
import pytest
from click.testing import CliRunner

from cse.export.bundle import make_domain
from cse.export.domains import add_domain, remove_domain
from cse.runtime.domain_files import Centres
from deploy.server import keys
from deploy.server.app import create_app
from deploy.server.command import serve_key
from deploy.server.keys import digest, read_keys
from deploy.server.options import Options
from tests.deploy.servers import asked, client_of
from tests.export.banks import KINDS, make_encoder
from tests.parts import refusal

TEXT = "the cat sits on the mat"


def listed(app, query="", key=None):
    (answer,) = asked(app, ("GET", f"/v1/models{query}", None), key=key)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("limit", [1, 4])
def test_the_pages_together_are_the_list(small_bank, limit):
    app, found, page = create_app(Options(model=str(small_bank))), [], {"last_id": "", "has_more": True}
    while page["has_more"]:
        page = listed(app, f"?limit={limit}&after={page['last_id']}")
        assert len(page["data"]) <= limit
        found += page["data"]
    assert found == listed(app)["data"]
    assert [card["id"] for card in found] == sorted(KINDS)


def test_what_is_no_page_and_a_domain_larger_than_the_memory_are_refused(small_bank):
    app = create_app(Options(model=str(small_bank), max_domain_bytes=100))
    for query, said in (
        ("?after=../x", "after: '../x' is not the id of a model; send the last_id of a page"),
        ("?after=%00", "after: "),
        ("?limit=10001", "limit: Input should be less than or equal to 10000"),
    ):
        (answer,) = asked(app, ("GET", f"/v1/models{query}", None))
        assert answer.status_code == 400 and answer.json()["error"]["message"].startswith(said)
    (answer,) = asked(app, ("POST", "/embed", {"inputs": TEXT, "model": "plain"}))
    assert (answer.status_code, listed(app)["data"]) == (503, [])


def test_a_page_goes_on_behind_a_domain_that_is_gone_and_past_a_damaged_one(small_bank, tmp_path):
    bank = shutil.copytree(small_bank, tmp_path / "bank")
    app = create_app(Options(model=str(bank)))
    first = listed(app, "?limit=2")
    remove_domain(bank, first["last_id"])
    (bank / "domains" / f"{sorted(KINDS)[2]}.safetensors").write_bytes(b"damaged")
    empty = listed(app, f"?limit=1&after={first['last_id']}")
    assert (empty["data"], empty["has_more"]) == ([], True)
    assert [card["id"] for card in listed(app, f"?after={empty['last_id']}")["data"]] == sorted(KINDS)[3:]


def test_the_first_auto_reads_all_centres_and_holds_up_no_other_request(
    small_bank, tiny_folders, tmp_path, monkeypatch
):
    bank = shutil.copytree(small_bank, tmp_path / "bank")
    centre = np.eye(1, 32, dtype=np.float32)
    add_domain(bank, make_domain(make_encoder(tiny_folders["bert"], "plain"), "plain", centres=centre), replace=True)
    app, free, read = create_app(Options(model=str(bank))), threading.Event(), Centres.look
    monkeypatch.setattr(Centres, "look", lambda *given: free.wait(20) and read(*given))

    async def ask():
        async with client_of(app) as client:
            body = {"inputs": TEXT, "model": "auto"}
            asked = [asyncio.create_task(client.post("/embed", json=body)) for _ in range(9)]
            await asyncio.sleep(0.5)
            named = await client.post("/embed", json={"inputs": TEXT, "model": "hidden"})
            waiting = not any(task.done() for task in asked)
            free.set()
            return named, waiting, [await task for task in asked]

    named, waiting, answers = asyncio.run(ask())
    assert (named.status_code, waiting) == (200, True)
    assert [answer.status_code for answer in answers] == [200] * 9


def test_a_key_opens_what_its_line_names(small_bank, tmp_path):
    (tmp_path / "keys").write_text(KEYS.format(**{name: digest(name) for name in ("some", "one", "all")}))
    app = create_app(Options(model=str(small_bank), api_keys=tmp_path / "keys"))
    for key, model, status, code in ASKED:
        (answer,) = asked(app, ("POST", "/v1/embeddings", {"model": model, "input": TEXT}), key=key)
        assert (answer.status_code, answer.json().get("error", {}).get("code")) == (status, code)
        assert "own-cls" not in answer.text, "a key does not learn what else there is"
    bodies = {"/embed": {"inputs": TEXT}, "/similarity": {"inputs": {"source_sentence": TEXT, "sentences": ["a"]}}}
    for route, body in bodies.items():
        requests = [("POST", route, body | model) for model in ({"model": "plain"}, {"model": "shared"}, {})]
        for key, statuses in (("some", [200, 403, 400]), ("one", [200, 403, 200])):
            assert [one.status_code for one in asked(app, *requests, key=key)] == statuses
    found = {key: [card["id"] for card in listed(app, key=key)["data"]] for key in ("some", "one", "all")}
    assert found == {"some": ["hidden", "plain"], "one": ["plain"], "all": sorted(KINDS)}
    assert [card["id"] for card in listed(app, "?limit=1&after=hidden", key="some")["data"]] == ["plain"]


KEYS = "{some} models=plain,hidden,nowhere a team\n{one} models=plain\n{all} models of all\n"


ASKED = [
    ("all", "shared", 200, None),
    ("some", "plain", 200, None),
    ("some", "shared", 403, "model_not_allowed"),
    ("some", "no such model", 403, "model_not_allowed"),
    ("some", "auto", 403, "model_not_allowed"),
    ("some", "shared:plain", 403, "model_not_allowed"),
    ("some", "plain:shared", 404, "model_not_found"),
    ("some", "nowhere", 404, "model_not_found"),
    ("none", "plain", 401, "invalid_api_key"),
]


def test_the_command_writes_lines_and_others_are_refused(tmp_path):
    made, file = CliRunner().invoke(serve_key, ["a team", "--models", "plain, hidden"]), tmp_path / "keys"
    file.write_text(made.stdout)
    assert read_keys(file) == {digest(made.stderr.strip()): keys.Key(frozenset({"plain", "hidden"}), 1)}
    assert made.stdout.endswith(" models=plain,hidden a team\n")
    for line, said in (
        ("{0} models=a,,b team", "keys:2: 'models=a,,b' leaves out a name; write models=NAME,NAME"),
        ("{1} models=a", "keys:2: the key of line 1 again; name all its models there"),
        ("{0}models=a", "keys:2: not the SHA-256 of a key"),
    ):
        file.write_text(f"{digest('1')}\n{line.format(digest('0'), digest('1'))}\n")
        assert said in refusal(read_keys, file)
