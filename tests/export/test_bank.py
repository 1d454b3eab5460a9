"""A bank gives what each domain's own encoder and bundle give, however domains are mixed; also domains with biases or
low-rank updates of their own, and backbones of other families: causal masks, last tokens, layers behind the pooling.
"""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from cse.artifact import sealed
from cse.export.bank import create_bank
from cse.export.bundle import make_domain
from cse.export.domains import add_domain
from cse.model.backbone import linear_layers
from cse.model.declared import Declared
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.bank import Bank
from cse.runtime.bundle import MANIFEST
from cse.runtime.onnx_encoder import OnnxEncoder
from tests.export.banks import check_mixed, make_adapted, make_bank, make_encoder, make_encoders, padded
from tests.export.conftest import build
from tests.export.systems import SENTENCES
from tests.model.families import make_family_folder
from tests.parts import backbone_of, new_prompt, refusal, sentence_encoder
from tests.rows import write_objects
from tests.tiny import DECLARED, WORDS

_LONG = " ".join(WORDS + WORDS)  # beyond every domain's maximum length


@pytest.fixture(scope="module", params=["bert", "roberta"])
def banked(request, tiny_folders, empty_banks, tmp_path_factory):
    """A bank and the encoders that its domains came from, by name."""
    encoders = make_encoders(tiny_folders[request.param])
    return make_bank(tmp_path_factory.mktemp("bank") / "bank", empty_banks(request.param), encoders), encoders


def test_mixed_batches_equal_each_domains_own_encoder(banked):
    bank, encoders = banked
    check_mixed(bank, encoders, [*SENTENCES, _LONG])
    found = np.stack([padded(encoder.encode("the cat")) for encoder in encoders.values()])
    assert len(np.unique(found.round(3), axis=0)) == len(encoders), "domains must differ for a mix-up to show"


def test_each_domain_has_its_own_default_of_normalisation(tiny_folders, empty_banks, tmp_path):
    encoder = make_encoder(tiny_folders["bert"], "plain")
    bank = make_bank(tmp_path / "bank", empty_banks("bert"), {"unit": encoder})
    add_domain(bank, make_domain(encoder, "raw", normalize=False))
    onnx, texts, names = OnnxEncoder(bank, provider="cpu"), ["the cat"] * 2, ["unit", "raw"]
    unit, raw = onnx.encode(texts, domain=names)
    assert np.linalg.norm(unit) == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(raw, encoder.encode("the cat", normalize=False), atol=2e-5)
    for normalize, expected in ((True, unit), (False, raw)):
        np.testing.assert_allclose(onnx.encode(texts, domain=names, normalize=normalize), [expected] * 2, atol=2e-5)


@pytest.mark.parametrize(
    ("prompt", "own", "expected"), [(2, None, 37), (5, None, 35), (2, 38, 38), (5, 38, 35), (5, 9, 9)]
)
def test_a_prompt_shortens_texts_only_where_positions_end(bert, empty_banks, tmp_path, prompt, own, expected):
    """40 positions and a declared length of 37 tokens, or one of the settings."""
    if own:
        bert.declared = dataclasses.replace(bert.declared, max_length=own)
    encoder = sentence_encoder(bert, new_prompt("key_value", bert, length=prompt, init_std=0.7), pooler="mean")
    assert (encoder.shift, encoder.max_length) == (prompt, expected)
    bank = make_bank(tmp_path / "bank", empty_banks("bert"), {"it": encoder})
    onnx = OnnxEncoder(bank, provider="cpu")
    counted = onnx.encode_counting([_LONG], domain="it")
    assert (counted.max_length, counted.truncated) == (expected, 1)
    np.testing.assert_allclose(counted.embeddings, encoder.encode([_LONG]), atol=1e-5)
    shorter = encoder.encode_counting([_LONG], max_length=expected - 1).embeddings
    assert not np.allclose(counted.embeddings, shorter, atol=1e-4), "each token counts"
    assert onnx.max_length == DECLARED, "what the backbone declares"


def test_nothing_is_encoded_without_saying_whose_prompts(banked, exports):
    onnx, one = OnnxEncoder(banked[0], provider="cpu"), exports("bert key_value mean")
    for encoder, texts, domain, said in (
        (onnx, ["the cat"], None, "say whose prompts"),
        (onnx, ["the cat"], "plane", "no domain 'plane'; did you mean 'plain'"),
        (onnx, ["the cat"], ["plain", "bare"], "2 names for 1 sentences"),
        (onnx, ["the cat", "a dog"], ["plain", None], "domain[1]: expected a name, found NoneType"),
        (one.encoder, ["the cat"], "plain", "one model"),
    ):
        assert said in refusal(encoder.encode, texts, domain=domain)
    said = refusal(SentenceEncoder.load, banked[0])
    assert "an ONNX bundle or a bank; name the checkpoint it was made of" in said


REFUSED = [
    ("bert input cls", "input-layer prompt"),
    ("bert hidden_state block1", "pooler mean_first_last"),
    ("bert template mask lora", "low-rank updates"),
    ("roberta template denoised", "a template puts words around the sentence"),
    ("roberta flow mlp", "post-processing (flow)"),
]


def test_what_a_bank_cannot_hold_is_refused_by_name(tiny_folders, bert):
    widths = sentence_encoder(bert, new_prompt("key_value", bert, length=2), use=Declared(None, 20, {}, (8, 16)))
    made = [(build(tiny_folders, row), reason) for row, reason in REFUSED]
    for encoder, reason in [*made, (widths, "it has shorter vectors (8, 16), and a bank has none")]:
        said = refusal(make_domain, encoder, "it")
        assert said.startswith("domain it: ") and reason in said and "export it as a bundle" in said


# ---- biases and low-rank updates ------------------------------------------------------------------------------------

# what is trained in the backbone, and beside it
KINDS = {
    "lora": {"trained": "lora"}, "prompted-lora": {"trained": "lora", "rank": 3, "prompt": 4},
    "biases": {"trained": "biases"}, "prompted-biases": {"trained": "biases", "prompt": 2},
    "prompts": {"trained": "prompts", "prompt": 5}, "bare": {"trained": "prompts"},
}  # fmt: skip
SLOW = [pytest.param(family, marks=pytest.mark.slow) for family in ("albert", "electra", "modernbert", "llama")]


def make(place, encoders, adapters=("all",)):
    """A bank with these encoders as domains, the bare one first."""
    assert create_bank(encoders["bare"], place, tolerance=1e-5, adapters=adapters) < 1e-5
    for name, encoder in encoders.items():
        add_domain(place, make_domain(encoder, name, shape=Bank(place).manifest.shape))


@pytest.mark.parametrize("family", ["bert", *SLOW])
def test_mixed_rows_equal_each_domains_own_encoder(family, tiny_folders, tmp_path):
    folder = tiny_folders["bert"] if family == "bert" else make_family_folder(tmp_path / "model", family)
    encoders = {name: make_adapted(folder, seed=seed, **parts) for seed, (name, parts) in enumerate(KINDS.items())}
    make(tmp_path / "bank", encoders)
    check_mixed(tmp_path / "bank", encoders, SENTENCES)
    for name, encoder in encoders.items():
        if name != "bare" and not (name == "biases" and family in ("modernbert", "llama")):  # they have none
            assert np.abs(encoder.encode(SENTENCES) - encoders["bare"].encode(SENTENCES)).max() > 0.01, name


@pytest.fixture(scope="module")
def made(tiny_folders, tmp_path_factory):
    """A bank whose domains may have LoRA of two layers and biases, and its encoders; do not change it."""
    place = tmp_path_factory.mktemp("adapters") / "bank"
    encoders = {name: make_adapted(tiny_folders["bert"], **KINDS[name]) for name in ("biases", "bare")}
    encoders["lora"] = lora_of(tiny_folders["bert"], "query", "value")
    make(place, encoders, ["query", "value"])
    return place, encoders


def lora_of(folder, *names):
    """An encoder with LoRA of the named layers alone, as one that PEFT trained."""
    encoder = make_adapted(folder, "lora")
    with torch.no_grad():
        for layer, path in linear_layers(encoder.backbone).items():
            if not path.endswith(names):
                layer.parametrizations.weight[0].up.zero_()
    return encoder


def test_lora_of_some_layers_and_biases_of_all(made):
    place, encoders = made
    check_mixed(place, encoders, SENTENCES)
    widths = Bank(place).manifest.shape.updates  # two layers of 32 inputs and outputs in each of the blocks
    assert widths["update_down"] == widths["update_up"] == 2 * 32 * Bank(place).manifest.shape.layers


@pytest.mark.parametrize("kind", ["lora", "biases"])
def test_a_bank_of_prompts_alone_never_answers_for_an_adapter(kind, tiny_folders, empty_banks, made, tmp_path):
    """Neither from a checkpoint nor from another bank's file: base vectors in its name would be wrong silently."""
    bank = shutil.copytree(empty_banks("bert"), tmp_path / "bank")
    encoder, domain = make_adapted(tiny_folders["bert"], kind), Bank(made[0]).domain(kind)
    assert "the bank takes prompts alone" in refusal(make_domain, encoder, "it")
    said = refusal(add_domain, bank, domain)
    assert "biases or low-rank updates " in said and " and this one takes prompts alone; add" in said
    shutil.copy(made[0] / "domains" / f"{domain.name}.safetensors", bank / "domains")
    said = refusal(OnnxEncoder(bank, provider="cpu").encode, ["the cat"], domain=domain.name)
    assert "this one takes prompts alone" in said


def test_what_a_bank_does_not_take_is_named(made, tiny_folders, tmp_path):
    place, bert = made[0], tiny_folders["bert"]
    own, bare = Bank(place).manifest, make_adapted(bert, "prompts")
    said = refusal(make_domain, lora_of(bert, "query", "key"), "it", shape=own.shape)
    assert re.search(r"domain it: layer attention.self.key has .* takes those of query, value alone", said)
    other = shutil.copytree(place, tmp_path / "other")  # of as many numbers, but of other layers
    tree = json.loads((other / MANIFEST).read_text())
    tree["shape"]["adapters"] = ["query", "key"]
    (other / MANIFEST).write_text(json.dumps(sealed(tree)))
    said = refusal(add_domain, other, Bank(place).domain("lora"))
    assert "bank with adapters (query, value), and this one takes query, key; add" in said
    for trained in ("norms", "full"):
        said = refusal(make_domain, make_adapted(bert, trained), "it", shape=own.shape)
        assert re.search(f"domain it: .* were trained \\({trained}\\), .*; export it as a bundle", said)
    said = refusal(create_bank, bare, tmp_path / "bank", tolerance=1e-5, adapters=["querry"])
    assert re.search(r"bank\.adapters: no layer of .* 'querry'; did you mean 'query'\?; it has query", said)
    said = refusal(create_bank, make_adapted(bert, "lora"), tmp_path / "bank", tolerance=1e-5, adapters=["all"])
    assert "a bank begins with one that was not" in said


# ---- families ------------------------------------------------------------------------------------------------------

TEXTS = {"query": "the old house ", "passage": ""}


def with_dense(folder):
    """Put a layer of another width behind a model's mean, in the files of sentence-transformers."""
    parts = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense")]
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in parts]
    write_objects(folder / "modules.json", [modules])
    write_objects(folder / "1_Pooling/config.json", [{"pooling_mode_mean_tokens": True}])
    write_objects(folder / "2_Dense/config.json", [{"activation_function": "torch.nn.modules.activation.Tanh"}])
    linear = {"linear.weight": torch.randn(48, 32) / 6, "linear.bias": torch.randn(48)}
    save_file(linear, folder / "2_Dense/model.safetensors")
    return folder


def encoders_of(folder, *, cls):
    """Domains that use what a family can have: a prompt, roles, a head, a trained ``[CLS]``, nothing."""
    backbone = backbone_of(folder)
    torch.manual_seed(7)

    def new(length, **options):
        prompt = new_prompt("key_value", backbone, length=length, init_std=0.7) if length else None
        return sentence_encoder(backbone, prompt, position_shift=backbone.family.positions != "rotary", **options)

    found = {"bare": new(0), "long": new(5), "roles": new(2, use=Declared(None, 24, TEXTS))}
    if cls:
        found["cls"] = new(1, cls=True, pooler="cls")
        with torch.no_grad():
            found["cls"].cls.add_(0.5 * torch.randn_like(found["cls"].cls))
    return found


FAMILIES = ["electra", "llama, wide heads, no added tokens", "gemma3, both ways, dense"]


@pytest.mark.parametrize("case", ["qwen3", *(pytest.param(case, marks=pytest.mark.slow) for case in FAMILIES)])
def test_mixed_domains_have_their_own_encoders_vectors(case, tmp_path):
    folder = make_family_folder(tmp_path / "model", case.removesuffix(", dense"))
    encoders = encoders_of(with_dense(folder) if case.endswith("dense") else folder, cls=case == "electra")
    width = encoders["bare"].dimension
    assert width == (48 if case.endswith("dense") else 32)
    make(tmp_path / "bank", encoders, adapters=None)
    check_mixed(tmp_path / "bank", encoders, SENTENCES)
    onnx = OnnxEncoder(tmp_path / "bank", provider="cpu")
    of_query = encoders["roles"].encode(SENTENCES, role="query")
    assert np.abs(of_query - encoders["roles"].encode(SENTENCES)).max() > 0.01
    np.testing.assert_allclose(onnx.encode(SENTENCES, domain="roles", role="query"), of_query, atol=1e-5)
    passages = onnx.encode(SENTENCES, domain="roles", role="passage")
    np.testing.assert_allclose(passages, encoders["roles"].encode(SENTENCES), atol=1e-5)


def test_the_same_weights_with_a_layer_behind_them_are_another_backbone(tiny_folders, empty_banks, tmp_path):
    bank = shutil.copytree(empty_banks("bert"), tmp_path / "bank")
    wide = with_dense(shutil.copytree(tiny_folders["bert"], tmp_path / "wide"))
    said = refusal(add_domain, bank, make_domain(encoders_of(wide, cls=False)["long"], "wide"))
    assert "made for another backbone" in said and "train it on the bank's" in said
