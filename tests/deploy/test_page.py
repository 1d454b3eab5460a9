"""The server's page, in a real browser: what it shows equals what the encoder computes."""

import re
import shutil
from contextlib import ExitStack
from urllib.parse import urlparse

import numpy as np
import pytest

from cse.export.bundle import make_domain
from cse.export.domains import add_domain
from cse.runtime.onnx_encoder import OnnxEncoder
from deploy.server.keys import digest
from tests.deploy.servers import serving
from tests.export.banks import make_encoder
from tests.runtime.conftest import write_bundle

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

TEXTS = ["the cat sits on the mat", "a dog sleeps", "two birds eat bread", "music near the river", "no red apple"]
QUERY = "the old cat sleeps on the sofa"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """A bundle whose vectors are not of unit length."""
    return write_bundle(tmp_path_factory.mktemp("page") / "bundle", normalize=False)


@pytest.fixture(scope="module")
def bank(tiny_folders, empty_banks, tmp_path_factory):
    """A bank of two domains that choose by the text."""
    folder = tmp_path_factory.mktemp("page") / "bank"
    shutil.copytree(empty_banks("bert"), folder)
    opened = OnnxEncoder(folder, provider="cpu", threads=1)
    for seed, (name, text) in enumerate({"projected": TEXTS[0], "hidden": TEXTS[3]}.items()):
        centre = opened.encode([text], normalize=True, domain=opened.bank.bare)
        add_domain(folder, make_domain(make_encoder(tiny_folders["bert"], name, seed), name, centres=centre))
    return folder


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        # no sandbox: a container's root may not have one
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser, tmp_path):
    """Serve a model and open its page; afterwards fail if it logged an error or asked another host for anything."""
    wrong = []
    with ExitStack() as stack:

        def go(model, *options, expected=""):
            site = stack.enter_context(serving(model, *options, log=tmp_path / "server")).url
            page = stack.enter_context(browser.new_context()).new_page()
            page.set_default_timeout(10_000)
            page.on("console", lambda said: said.type == "error" and note(said.text))
            page.on("pageerror", lambda error: note(str(error)))
            page.on("request", lambda asked: urlparse(asked.url).netloc == urlparse(site).netloc or note(asked.url))

            def note(text):
                if not (expected and re.search(expected, text)):
                    wrong.append(text)

            page.goto(site)
            page.locator("#facts").filter(has_text="dimensions").wait_for()
            return page

        yield go
    assert wrong == []


def compare(page, texts=TEXTS, query=QUERY, model=None, other=None):
    """Fill in the form, press the button and wait for the results."""
    page.get_by_label("Sentences").fill("\n".join(texts))
    page.get_by_label("Query").fill(query)
    if model:
        page.get_by_label("Model", exact=True).select_option(model)
    if other is not None:
        page.get_by_label("Compare with").select_option(other)
    page.get_by_role("button", name="Compare").click()
    page.get_by_role("status").filter(has_text="Compared ").wait_for()


def heat_map(page, place=0):
    table = page.locator("table").nth(place)
    rows = table.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.querySelectorAll('td')].map(cell => cell.textContent))"
    )
    return np.array([[float(text.replace("\u2212", "-")) for text in row] for row in rows])


def ranking(page, place=0):
    """Rank, text, mark and cosine of each row."""
    items = page.locator("ol").nth(place).locator("li")
    found = items.evaluate_all(
        "items => items.map(item => ['place', 'text', 'moved', 'score'].map("
        "name => item.querySelector('.' + name).firstChild?.textContent ?? ''))"
    )
    return [(int(rank), text.strip(), mark, float(score.replace("\u2212", "-"))) for rank, text, mark, score in found]


def test_vectors_that_are_not_of_unit_length(visit, bundle):
    """This bundle's are not. The server takes sixteen texts at a time."""
    texts = [f"{'the cat ' * (i % 3)}dog sat" for i in range(40)]
    page = visit(bundle, "--max-texts", 16)
    encoder, sizes = OnnxEncoder(bundle, provider="cpu", threads=1), []
    page.on("request", lambda asked: sizes.append(len(asked.post_data_json["input"])))
    assert abs(np.linalg.norm(encoder.encode(texts[0])) - 1) > 0.05
    compare(page, texts, query="")
    np.testing.assert_allclose(heat_map(page), encoder.similarity(texts, texts), atol=0.006)
    assert sizes == [16, 16, 8]
    assert page.get_by_role("heading", name="Ranking").is_hidden(), "there is no query"


def test_two_models_side_by_side_with_cosines_in_order_and_marks(visit, bank):
    page, encoder = visit(bank), OnnxEncoder(bank, provider="cpu", threads=1)
    compare(page, model="projected", other="hidden")
    orders = []
    for place, name in enumerate(("projected", "hidden")):
        vectors, query = (encoder.encode(given, domain=name) for given in (TEXTS, QUERY))
        np.testing.assert_allclose(heat_map(page, place), encoder.similarity(vectors, vectors), atol=0.006)
        scores = encoder.similarity(vectors, [query])[:, 0]
        orders.append([TEXTS[row] for row in np.argsort(-scores)])
        shown = ranking(page, place)
        assert [row[:2] for row in shown] == list(enumerate(orders[-1], 1))
        np.testing.assert_allclose([row[3] for row in shown], np.sort(scores)[::-1], atol=0.001)
    moves = [orders[0].index(text) - place for place, text in enumerate(orders[1])]
    assert any(moves)
    assert [row[2] for row in ranking(page, 1)] == [f"{'▲' if by > 0 else '▼'}{abs(by)}" if by else "" for by in moves]


def test_a_server_with_keys_asks_for_one_and_the_page_forgets_it(visit, bank, tmp_path):
    (tmp_path / "keys").write_text(f"{digest('secret')}\n")
    page = visit(bank, "--api-keys", tmp_path / "keys", expected="401")
    key = page.get_by_label("API key")
    assert key.is_visible(), "GET /v1/models was refused"
    key.fill("secret")
    compare(page)
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
    page.reload()
    assert key.input_value() == ""


def test_text_is_never_taken_for_markup_and_the_policy_forbids_everything_from_elsewhere(visit, bundle):
    page, text = visit(bundle, expected="Content Security Policy"), "<img src=x onerror=alert(1)><b>cat</b>"
    compare(page, [text, "dog"])
    assert page.locator("#results img").count() == 0
    assert sorted(row[1] for row in ranking(page)) == [text, "dog"]
    policy = page.request.get(page.url).headers["content-security-policy"]
    assert "default-src 'self'" in policy and "unsafe" not in policy
    blocked = """() => new Promise((done) => {
      document.addEventListener("securitypolicyviolation", (event) => done(event.effectiveDirective));
      document.head.append(Object.assign(document.createElement("script"), {textContent: "window.ran = 1"}));
    })"""
    assert page.evaluate(blocked) == "script-src-elem"
    assert page.evaluate("window.ran") is None
