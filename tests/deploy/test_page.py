"""The server's page, in a real browser: what it shows equals what the encoder computes."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import ExitStack
from urllib.parse import urlparse

import numpy as np
import pytest

from cse.export.bundle import make_domain
from cse.export.domains import add_domain, remove_domain
from cse.runtime.onnx_encoder import OnnxEncoder
from tests.deploy.servers import serving
from tests.export.banks import make_encoder
from tests.runtime.conftest import DIMENSION, MAX_LENGTH, write_bundle

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

TEXTS = ["the cat sits on the mat", "a dog sleeps", "two birds eat bread", "music near the river", "no red apple"]
QUERY = "the old cat sleeps on the sofa"
# colours as a reader sees them: paints them and reads the pixel
CONTRASTS = """() => {
  const pen = Object.assign(document.createElement("canvas"), {width: 1, height: 1}).getContext("2d");
  const light = (colour) => {
    pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1);
    const part = (v) => v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = pen.getImageData(0, 0, 1, 1).data;
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  return [...document.querySelectorAll("tbody td")].map((cell) => {
    const {color, backgroundColor} = getComputedStyle(cell);
    const [low, high] = [light(color), light(backgroundColor)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  });
}"""


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


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Serve a bundle or a bank once, and return its address."""
    running = {}
    with ExitStack() as stack:

        def of(model):
            if model not in running:
                log = tmp_path_factory.mktemp("log") / "server"
                running[model] = stack.enter_context(serving(model, log=log)).url
            return running[model]

        yield of


@pytest.fixture
def visit(browser, address, request):
    """Open the page of a model; afterwards fail if it logged an error or asked another host for anything."""
    wrong, contexts = [], []

    def go(model, *, expected="", before=None, **options):
        site = address(model)
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda said: said.type == "error" and note(said.text))
        page.on("pageerror", lambda error: note(str(error)))
        page.on("request", lambda asked: urlparse(asked.url).netloc == urlparse(site).netloc or note(asked.url))

        def note(text):
            if not (expected and re.search(expected, text)):
                wrong.append(text)

        if before:
            before(page)
        page.goto(site)
        page.locator("#facts").filter(has_text="dimensions").wait_for()
        return page

    yield go
    for context in contexts:
        context.close()
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
    done(page)


def done(page):
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


def expected_order(encoder, domain, texts=TEXTS, query=QUERY):
    scores = encoder.similarity(*(encoder.encode(given, domain=domain) for given in (texts, [query])))[:, 0]
    order = np.argsort(-scores)
    return [texts[row] for row in order], scores[order]


def with_info(**changes):
    """Change what GET /info says."""

    def change(page):
        page.route("**/info", lambda route: route.fulfill(json=route.fetch().json() | changes))

    return change


def cut_off(page):
    """By how many pixels the page is wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


# ---- numbers --------------------------------------------------------------------------------------------------------


def test_vectors_that_are_not_of_unit_length(visit, bundle):
    """This bundle's are not. The server takes sixteen texts at a time."""
    texts = [f"{'the cat ' * (i % 3)}dog sat" for i in range(40)]
    page = visit(bundle, before=with_info(max_client_batch_size=16))
    encoder, sizes = OnnxEncoder(bundle, provider="cpu", threads=1), []
    page.on("request", lambda asked: sizes.append(len(asked.post_data_json["input"])))
    assert abs(np.linalg.norm(encoder.encode(texts[0])) - 1) > 0.05
    compare(page, texts, query="")
    np.testing.assert_allclose(heat_map(page), encoder.similarity(texts, texts), atol=0.006)
    assert sizes == [16, 16, 8]
    assert page.get_by_role("heading", name="Ranking").is_hidden(), "there is no query"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_numbers_are_readable_on_every_colour(visit, bundle, scheme):
    page = visit(bundle, color_scheme=scheme)
    compare(page, ["the cat sat", "a dog", "on mat", "sat the", "dog dog on"], query="")
    assert heat_map(page).min() < 0
    page.evaluate("""() => document.querySelectorAll("tbody td").forEach((cell, i) => {
      cell.style.setProperty("--v", `${4 * i}%`); cell.classList.toggle("negative", i % 2)})""")
    assert min(page.evaluate(CONTRASTS)) >= 4.5


# ---- models ---------------------------------------------------------------------------------------------------------


def test_two_models_side_by_side_with_cosines_in_order_and_marks(visit, bank):
    page, encoder = visit(bank), OnnxEncoder(bank, provider="cpu", threads=1)
    compare(page, model="projected", other="hidden")
    (before, cosines), (after, others) = (expected_order(encoder, name) for name in ("projected", "hidden"))
    assert before != after
    marks = [(before.index(text) - place) for place, text in enumerate(after)]
    written = ["" if not by else f"{'▲' if by > 0 else '▼'}{abs(by)}" for by in marks]
    assert [row[1:3] for row in ranking(page, 1)] == list(zip(after, written, strict=True))
    assert [row[:3] for row in ranking(page)] == [(place, text, "") for place, text in enumerate(before, 1)]
    scores = np.concatenate([cosines, others])
    np.testing.assert_allclose([row[3] for place in (0, 1) for row in ranking(page, place)], scores, atol=0.001)
    bars = page.locator("li .bar").evaluate_all(
        "all => all.map(bar => parseFloat(getComputedStyle(bar, '::before').width) / bar.clientWidth)"
    )
    np.testing.assert_allclose(bars, np.clip(scores, 0, 1), atol=0.01)
    for place, name in enumerate(("projected", "hidden")):
        vectors = encoder.encode(TEXTS, domain=name)
        np.testing.assert_allclose(heat_map(page, place), encoder.similarity(vectors, vectors), atol=0.006)
    left, right = (page.locator("table").nth(i).bounding_box() for i in range(2))
    assert (left["y"], left["x"] < right["x"]) == (right["y"], True)
    page.set_viewport_size({"width": 360, "height": 800})
    left, right = (page.locator("table").nth(i).bounding_box() for i in range(2))
    assert left["y"] + left["height"] < right["y"]
    assert cut_off(page) <= 0


def test_auto_says_which_domain_it_chose(visit, bank):
    page, encoder = visit(bank), OnnxEncoder(bank, provider="cpu", threads=1)
    compare(page, model="auto")
    chosen = encoder.encode_counting([*TEXTS, QUERY], domain="auto").domains
    assert len(set(chosen)) == 2
    assert page.locator("tbody th .domain").all_inner_texts() == chosen[:-1]
    assert page.locator("#ranking h3 .domain").inner_text() == chosen[-1]
    assert "different domains mean little" in page.locator("#notes").inner_text()


def test_a_bundle_is_named_and_there_is_nothing_to_choose(visit, bundle, address):
    page = visit(bundle)
    (model,) = page.request.get(f"{address(bundle)}/v1/models").json()["data"]
    version = page.request.get(f"{address(bundle)}/info").json()["version"]
    facts = f"{model['id']} · {DIMENSION} dimensions · at most {MAX_LENGTH} tokens · version {version}"
    assert page.locator("#facts").inner_text() == facts
    assert page.locator("select:visible").count() == 0
    compare(page, ["the cat sat", "a dog sat on the mat the cat", "dog"], query="dog")
    assert page.locator("#notes").inner_text() == f"{model['id']}: 1 text was cut at {MAX_LENGTH} tokens."


# ---- errors ---------------------------------------------------------------------------------------------------------


def test_a_domain_that_was_removed_meanwhile(visit, bank, tmp_path):
    """The server's own error, in one line; the next comparison takes it away."""
    changing = tmp_path / "bank"
    shutil.copytree(bank, changing)
    page = visit(changing, expected="404")
    remove_domain(changing, "projected")
    page.get_by_label("Model", exact=True).select_option("projected")
    page.get_by_role("button", name="Compare").click()
    alert = page.get_by_role("alert")
    alert.filter(has_text=re.compile("^.*projected.*$")).wait_for()
    page.locator("#model option", has_text="projected").wait_for(state="detached")
    compare(page)
    assert alert.inner_text() == ""
    assert page.locator("table").count() == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            {"status": 429, "headers": {"retry-after": "3"}, "json": {"error": {"message": "The queue is full."}}},
            "The queue is full. Try again in 3 s.",
        ),
        ({"status": 502, "body": "<html>a proxy</html>"}, "The server answered 502 Bad Gateway"),
        (None, "The server does not answer."),
    ],
)
def test_what_the_page_says_of_a_server_in_trouble(visit, bundle, answer, said):
    page = visit(bundle, expected="429|502|ERR_FAILED")
    page.route("**/v1/embeddings", lambda route: route.fulfill(**answer) if answer else route.abort())
    page.get_by_role("button", name="Compare").click()
    page.get_by_role("alert").filter(has_text=re.compile(f"^{re.escape(said)}$")).wait_for()


@pytest.mark.parametrize(
    ("texts", "said"), [([" "], "at least one sentence"), (["cat"] * 201, "201 sentences; .* 200")]
)
def test_too_few_and_too_many_sentences_are_not_sent(visit, bundle, texts, said):
    page, asked = visit(bundle), []
    page.on("request", lambda request: asked.append(request.url))
    page.get_by_label("Sentences").fill("\n".join(texts))
    page.get_by_role("button", name="Compare").click()
    page.get_by_role("alert").filter(has_text=re.compile(said)).wait_for()
    assert asked == []


def test_a_server_with_keys_asks_for_one_and_the_page_forgets_it(visit, bank):
    def refuse(route):
        if route.request.headers.get("authorization") == "Bearer secret":
            route.continue_()
        else:
            route.fulfill(status=401, json={"error": {"message": "This server needs an API key."}})

    page = visit(bank, expected="401", before=lambda page: page.route("**/v1/**", refuse))
    key = page.get_by_label("API key")
    assert key.is_visible(), "GET /v1/models was refused"
    page.get_by_role("button", name="Compare").click()
    page.get_by_role("alert").filter(has_text="needs an API key").wait_for()
    assert key.evaluate("field => field === document.activeElement")
    key.fill("secret")
    key.press("Enter")
    done(page)
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
    page.reload()
    assert key.input_value() == ""


# ---- use ------------------------------------------------------------------------------------------------------------


def test_by_keyboard_alone(visit, bank):
    page = visit(bank)
    order = []
    for _ in range(6):
        page.keyboard.press("Tab")
        order.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert order == ["API", "sentences", "query", "model", "other", "compare"]
    page.keyboard.press("Enter")
    done(page)
    assert page.evaluate("document.activeElement.id") == "compare", "the place in the page is kept"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('role')") == "region", "a heat map can be scrolled"
    sentences = page.get_by_label("Sentences")
    sentences.fill("a dog")
    sentences.press("Enter")
    sentences.press_sequentially("the cat")
    sentences.press("Control+Enter")
    page.get_by_role("status").filter(has_text="Compared 2 sentences").wait_for()
    assert heat_map(page).shape == (2, 2)
    unnamed = "all => all.filter(one => !one.labels?.length && !one.textContent.trim()).map(one => one.id)"
    assert page.locator("input, select, textarea, button").evaluate_all(unnamed) == []


def test_an_old_answer_never_replaces_a_newer_one(visit, bundle):
    page, held = visit(bundle), []

    def hold_the_first(route):
        if held:
            route.continue_()
        else:
            held.append(route)

    page.route("**/v1/embeddings", hold_the_first)
    button, sentences = page.get_by_role("button"), page.get_by_label("Sentences")
    sentences.fill("the cat\na dog\nsat")
    sentences.press("Control+Enter")
    page.get_by_role("status").filter(has_text="Comparing 3 sentences").wait_for()
    assert (button.is_disabled(), button.inner_text()) == (True, "Comparing…")
    sentences.fill("the cat\na dog")
    sentences.press("Control+Enter")
    page.get_by_role("status").filter(has_text="Compared 2 sentences").wait_for()
    assert button.is_enabled()
    held[0].fulfill(status=400, body=json.dumps({"error": {"message": "too late"}}))
    page.wait_for_timeout(100)
    assert heat_map(page).shape == (2, 2)
    assert page.get_by_role("alert").inner_text() == ""


@pytest.mark.parametrize("width", [360, 800, 1280])
def test_the_page_never_scrolls_sideways(visit, bank, width):
    page = visit(bank, viewport={"width": width, "height": 800})
    assert cut_off(page) <= 0
    compare(page, [*TEXTS * 8, "word" * 100], query="x" * 300, model="auto", other="hidden")
    assert cut_off(page) <= 0
    assert page.locator(".scroll").first.evaluate("box => box.scrollWidth > box.clientWidth")


def test_text_is_never_taken_for_markup_and_the_policy_forbids_everything_from_elsewhere(visit, bundle, address):
    page, text = visit(bundle, expected="Content Security Policy"), "<img src=x onerror=alert(1)><b>cat</b>"
    compare(page, [text, "dog"])
    assert page.locator("#results img").count() == 0
    assert sorted(row[1] for row in ranking(page)) == [text, "dog"]
    policy = page.request.get(address(bundle)).headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    blocked = """() => new Promise((done) => {
      document.addEventListener("securitypolicyviolation", (event) => done(event.effectiveDirective));
      document.head.append(Object.assign(document.createElement("script"), {textContent: "window.ran = 1"}));
    })"""
    assert page.evaluate(blocked) == "script-src-elem"
    assert page.evaluate("window.ran") is None
