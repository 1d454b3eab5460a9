"""`cse index` and `cse search` with a bank: whose prompts make each vector, what is refused, what a change undoes; and
with a query side, which may change, come and go without touching the index: that belongs to the document side.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from cse.errors import CseError, Interrupted
from cse.export.bundle import make_domain
from cse.export.domains import add_domain, remove_domain
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.search import index as module
from cse.search.model import open_encoder
from cse.search.rows import Maker
from cse.search.table import open_table
from tests.cli.workspace import contents
from tests.export.banks import make_encoder
from tests.export.exports import bundle_of
from tests.parts import backbone_of
from tests.rows import write_lines, write_table
from tests.search.corpora import answers, read_vectors, sentences
from tests.sides import PARTS, query_side
from tests.tiny import WORDS

KINDS = {"billing": "hidden", "outage": "own-cls", "plain": "bare"}  # see tests.export.banks
TYPICAL = {"billing": ["the cat", "a mat"], "outage": ["red bird", "old river"]}  # what `auto` knows them by
TEXTS = [*sentences(20), "a", *TYPICAL["billing"], *TYPICAL["outage"], "the cat", "the"]
NAMES = [list(KINDS)[number * 7 // 5 % 3] for number in range(len(TEXTS))]  # several in every shard


def put_domain(bank: Path, backbone: Path, name: str, seed: int) -> None:
    """Add or replace a domain; its prompts depend on the seed."""
    encoder = make_encoder(backbone, KINDS.get(name, "plain"), seed)
    centres = SentenceEncoder(encoder.backbone).encode(TYPICAL[name]) if name in TYPICAL else None
    add_domain(bank, make_domain(encoder, name, centres=centres), replace=True)


@pytest.fixture(scope="module")
def made(tiny_folders, empty_banks, tmp_path_factory):
    """A bank that no test changes; all of its domains but ``plain`` can be chosen by text."""
    folder = shutil.copytree(empty_banks("bert"), tmp_path_factory.mktemp("bank") / "bank")
    for seed, name in enumerate(KINDS):
        put_domain(folder, tiny_folders["bert"], name, seed)
    return folder


@pytest.fixture
def bank(made, tmp_path):
    """A bank to change at will."""
    return shutil.copytree(made, tmp_path / "bank")


@pytest.fixture
def corpus(tmp_path):
    return write_lines(tmp_path / "corpus.txt", TEXTS)


@pytest.fixture
def table(tmp_path):
    """The texts with the name of each one's domain."""
    return write_named(tmp_path / "corpus.csv", NAMES)


def write_named(path, names):
    rows = zip(TEXTS, names, range(len(TEXTS)), strict=True)
    return write_table(path, ("text", "queue", "n"), rows, in_group=7)


@pytest.fixture
def run(index, monkeypatch):
    """`cse index`, ten rows a piece."""
    monkeypatch.setattr(module, "PIECE", 10)
    monkeypatch.setattr(module, "_COMMIT_ROWS", 10)
    return index


def expected(bank, domain, texts=TEXTS):
    return OnnxEncoder(bank, provider="cpu", threads=1).encode(texts, domain=domain)


@pytest.mark.parametrize("how", ["auto", "column"])
def test_a_stopped_run_goes_on_unless_its_domain_was_replaced(
    run, corpus, table, tmp_path, bank, tiny_folders, monkeypatch, how
):
    out, names = tmp_path / "vectors", NAMES if how == "column" else how
    given = (table, out, bank, "--domain-column", "queue") if how == "column" else (corpus, out, f"{bank}:{how}")

    def embed_one(self, ready, seen=[]):  # noqa: B006 - the first piece alone
        if seen:
            raise Interrupted(15, "after 10 rows")
        seen.append(ready)
        return embed(self, ready)

    embed = Maker.embed
    with monkeypatch.context() as patch:
        patch.setattr(Maker, "embed", embed_one)
        assert run(*given).code == 128 + 15
    kept = shutil.copytree(bank, tmp_path / "kept")
    put_domain(bank, tiny_folders["bert"], "billing", 7)
    assert run(*given).refused() == (
        f"{out}: made from different input: the model is different (domain billing has changed); use another --out, or "
        "--again to start over"
    )
    assert len(read_vectors(out)[0]) == 10
    shutil.rmtree(bank)
    kept.rename(bank)
    assert f"{len(TEXTS) - 10} new, 0 changed, 0 gone, 10 as they were" in run(*given).err
    np.testing.assert_allclose(read_vectors(out)[1], expected(bank, names), atol=1e-5)


def test_a_run_keeps_the_domains_that_it_started_with(run, tmp_path, bank, tiny_folders, monkeypatch):
    names = [*NAMES[:-1], "auto"]
    before, prepare = expected(bank, names), Maker.prepare

    def prepare_late(self, documents):
        put_domain(bank, tiny_folders["bert"], "billing", 7 + documents[0].id)
        put_domain(bank, tiny_folders["bert"], "outage", 8)
        return prepare(self, documents)

    monkeypatch.setattr(Maker, "prepare", prepare_late)
    path = write_named(tmp_path / "a.parquet", names)
    assert run(path, tmp_path / "vectors", bank, "--domain-column", "queue").code == 0
    ids, vectors, texts = read_vectors(tmp_path / "vectors")
    assert (ids, texts) == (list(range(len(TEXTS))), TEXTS)
    np.testing.assert_allclose(vectors, before, atol=1e-5)
    assert np.abs(before[10:] - expected(bank, names)[10:]).max() > 0.01


def test_models_and_columns_that_do_not_go_together(run, corpus, table, tmp_path, bank, bundle, monkeypatch):
    monkeypatch.setattr(module, "Maker", None)
    column, wrong = ("--domain-column", "queue"), write_named(tmp_path / "a.csv", [*NAMES[:14], "biling", *NAMES[15:]])
    for given, *wanted in (
        ((wrong, bank, *column), "a.csv:16: ", "no domain 'biling'; did you mean 'billing'?; it has billing, outage"),
        ((corpus, bank, *column), f"--domain-column queue: {corpus} has no columns; use a .csv"),
        ((table, bundle, *column), f"--domain-column queue: {bundle} is a bundle of one model; rows can choose"),
        ((table, f"{bank}:plain", *column), f"{bank}:plain is one domain for all rows; give --model {bank} instead"),
        ((table, f"{bank}s", *column), f"{bank}s: no such folder (--model); did you mean '{bank}'?"),
        ((corpus, bank), f"{bank}: a bank; name one of its domains, for instance {bank}:billing, or let each row"),
        ((corpus, f"{bank}:biling"), "no domain 'biling'; did you mean 'billing'?"),
    ):
        said = run(given[0], tmp_path / "vectors", *given[1:]).refused()
        assert all(part in said for part in wanted), given
    for name in TYPICAL:
        remove_domain(bank, name)
    assert "domain auto needs domains that" in run(corpus, tmp_path / "vectors", f"{bank}:auto").refused()
    assert not (tmp_path / "vectors/index.lance").exists()


def nearest(cse, folder, query, bank, domain, *options):
    """The best five cosines are those of numpy."""
    _, vectors, _ = read_vectors(folder)
    asked = expected(bank, domain, query)
    wanted = np.sort(vectors[:, : len(asked)] @ asked)[::-1][:5]
    (answer,) = answers(cse, folder, query, "-k", 5, "--mode", "vectors", *options)
    found = [hit["cosine"] for hit in answer["hits"]]
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_a_narrower_domain_ends_in_zeros_in_company(cse, run, corpus, table, tmp_path, bank, tiny_folders):
    add_domain(bank, make_domain(make_encoder(tiny_folders["bert"], "headed"), "plain"), replace=True)
    alone, mixed, query = tmp_path / "alone", tmp_path / "mixed", "the red bird"
    assert run(corpus, alone, f"{bank}:plain").code == 0
    assert read_vectors(alone)[1].shape == (len(TEXTS), 5)
    nearest(cse, alone, query, bank, "plain")
    assert run(table, mixed, bank, "--domain-column", "queue").code == 0
    _, vectors, _ = read_vectors(mixed)
    np.testing.assert_allclose(vectors, expected(bank, list(NAMES)), atol=1e-5)
    encoder = open_encoder(str(mixed), open_table(str(mixed)).facts, f"{bank}:plain", "cpu")
    assert encoder.dimension == encoder.encode(query).shape[-1] == vectors.shape[1] > 5, "as wide as the bank"
    assert encoder.encode([]).shape == (0, vectors.shape[1])
    with pytest.raises(CseError, match=r"^search: 1 queries, vectors \(1, 5\); "):  # the domain's own width
        open_table(str(mixed)).search([query], expected(bank, "plain", [query]), 3, "vectors")
    nearest(cse, mixed, query, bank, "plain", "--model", f"{bank}:plain")


@pytest.mark.parametrize("domain", ["outage", "auto", None])
def test_a_query_has_the_prompts_of_the_vectors(cse, run, corpus, table, tmp_path, bank, tiny_folders, domain):
    out, query, moved = tmp_path / "vectors", "the red bird", tmp_path / "moved"
    if domain is None:  # each row has its own, so the query needs a name
        run(table, out, bank, "--domain-column", "queue")
        line = cse("search", out, query).refused()
        assert line == (
            f"{out}: each row has the prompts of its own domain; say whose encode the query: --model {bank}:NAME, "
            "where NAME is one of billing, outage, plain"
        )
        assert cse("search", out, query, "--model", bank).refused() == line
        domain = "plain"
        refused = ["outage", "auto"]
    else:
        run(corpus, out, f"{bank}:{domain}")
        nearest(cse, out, query, bank, domain)
        refused = ["plain", domain]
    bank.rename(moved)
    assert f"{bank}: no such folder (--model)" in cse("search", out, query, "--model", bank).refused()
    nearest(cse, out, query, moved, domain, "--model", f"{moved}:{domain}")
    put_domain(moved, tiny_folders["bert"], "outage", 7)
    for other in refused:
        line = cse("search", out, query, "--model", f"{moved}:{other}").refused()
        assert line.startswith(f"{moved}:{other}: not the model that made {out}")


# ---- query sides -----------------------------------------------------------------------------------------------------

SAID = [" ".join(WORDS[start : start + 1 + start % 4]) for start in range(30)]
QUERIES = ["two small birds", "the cat sits on the mat"]


@pytest.fixture(scope="module")
def models(tiny_folders, empty_banks, tmp_path_factory):
    """Bundles of one backbone: bare, with three query sides, trained on both sides; and a bank of these."""
    root, folder = tmp_path_factory.mktemp("models"), tiny_folders["bert"]
    backbone = backbone_of(folder)
    encoders = {
        "bare": SentenceEncoder(backbone),
        "mapped": query_side(backbone, **PARTS["map"]),
        "prompted": query_side(backbone, **PARTS["prompt"]),
        "later": query_side(backbone, **PARTS["prompt"], seed=5),
        "both": make_encoder(folder, "plain"),
    }
    bank = shutil.copytree(empty_banks("bert"), root / "bank")
    for name, encoder in encoders.items():
        bundle_of(encoder, root / name)
        add_domain(bank, make_domain(encoder, name))
    return root


@pytest.fixture
def indexed(index, tmp_path):
    """Index the texts with a model."""
    corpus = write_lines(tmp_path / "corpus.txt", SAID)

    def run(model, *options, out=None):
        out = out or tmp_path / f"table-{str(model).rpartition('/')[2].replace(':', '-')}"
        done = index(corpus, out, model, *options)
        return done if done.code else out

    return run


@pytest.mark.parametrize("made_by", ["bare", "prompted", "bank:mapped"])
def test_any_query_side_searches_any_index_and_changes_nothing(cse, indexed, models, made_by):
    out = indexed(models / made_by)
    bare = OnnxEncoder(models / "bare", provider="cpu").encode(SAID)
    np.testing.assert_allclose(read_vectors(out)[1], bare, atol=1e-6)
    before = contents(out)
    sides = ["mapped", "prompted", "bank:mapped", "bank:later"]
    for side in [*sides, *([None] if made_by == "bank:mapped" else [])]:  # without a name that of then
        named = ("--model", models / side) if side else ()
        found = answers(cse, out, *QUERIES, "--mode", "vectors", "-k", 30, *named)
        side = side or made_by
        assert indexed(models / side, out=out) == out, "another run, whatever is shipped now, embeds nothing again"
        queries = OnnxEncoder(models / side.removeprefix("bank:"), provider="cpu").encode(QUERIES, role="query")
        for answer, expected in zip(found, queries @ bare.T, strict=True):
            cosines = {hit["id"]: hit["cosine"] for hit in answer["hits"]}
            assert cosines == {row: pytest.approx(value, abs=1e-5) for row, value in enumerate(expected)}
    assert contents(out) == before


def test_rows_are_no_queries_and_what_was_trained_on_both_sides_is_another_model(cse, indexed, models):
    for model in ("prompted", "bank:prompted"):
        assert indexed(models / model, "--role", "query").refused() == (
            f"--role query: {models / model.removesuffix(':prompted')} has a query side, which is for searching; an "
            "index holds what the bare backbone makes, so index without --role, or with --role passage"
        )
    for made_by, others in (("both", ("bare", "prompted", "bank:prompted")), ("bare", ("bank:both",))):
        out = indexed(models / made_by)
        for model in others:
            found = cse("search", out, QUERIES[0], "--model", models / model)
            assert "not the model that made" in found.refused()


def test_another_backbone_in_the_settings_is_exported_anew(cse, tiny_folders, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    corpus = write_lines(tmp_path / "corpus.txt", SAID[:3])
    exported = []
    for family in ("bert", "bert", "roberta"):
        (tmp_path / "params.yaml").write_text(f"backbone:\n  name: {tiny_folders[family]}\n")
        done = cse("index", corpus, "--out", "table", "--device", "cpu", "--again")
        assert done.code == 0, done.err
        exported.append("exporting the bare backbone" in done.err)
        bundle = json.loads((tmp_path / "data/bare/bundle.json").read_text())
        assert bundle["backbone"]["name"] == str(tiny_folders[family])
        assert bundle["parity"]["largest_difference"] < 1e-4
    assert exported == [True, False, True]
