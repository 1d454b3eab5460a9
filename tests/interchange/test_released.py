"""Released checkpoints become checkpoints of this project and give the released code's embeddings."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel

import cse as library
from cse.cli.exchange import LAYOUTS as CHOICES
from cse.interchange.importing import KINDS, import_model
from cse.interchange.released import LAYOUTS
from cse.model.checkpoint import read_config
from cse.model.sentence_encoder import SentenceEncoder
from tests.interchange import released
from tests.interchange.released import LENGTH, TEXTS, WIDTH, dense, language_model, prefix, random, training_layout
from tests.parts import embed, refusal
from tests.tiny import make_backbone_folder, make_tokenizer


def embeddings_of(source, kind, backbone, out, **options):
    """Import, load again from the folder, and embed; also what was said."""
    done = import_model(source, kind, str(backbone), out, **options)
    return SentenceEncoder.load(out).encode(TEXTS, batch_size=3, normalize=False), done.lines


def head(family):
    """A head of the masked language model: training only."""
    if family == "roberta":
        return {"dense.weight": random(WIDTH, WIDTH), "layer_norm.weight": random(WIDTH), "bias": random(64)}
    return {"bias": random(64), "transform.dense.weight": random(WIDTH, WIDTH), "decoder.weight": random(64, WIDTH)}


def test_prefix_gives_the_released_embeddings(backbone_folder, family, tmp_path):
    model, encoder = language_model(backbone_folder), prefix()
    tensors = training_layout(family, model, prefix_encoder=encoder, mlp=dense(), lm_head=head(family))
    source, pooler = released.save(tmp_path / "released", tensors, backbone_folder), "cls_before_pooler"
    found, lines = embeddings_of(source, "dcpcse", backbone_folder, tmp_path / "out", pooler=pooler)
    table, rows = encoder["embedding.weight"].double().numpy(), released.rows(backbone_folder, TEXTS)
    released.close(found, [released.states(family, model, ids, table)[-1][0, 0] for ids in rows])
    told = "\n".join(lines)
    assert all(name in told for name in (f"{family}.embeddings.position_ids (1)", "lm_head.* (3)", "mlp.* (2)"))
    assert list(load_file(tmp_path / "out/weights.safetensors")) == ["prompt.table"]
    config = read_config(tmp_path / "out")
    assert config["prompt"] == {"kind": "key_value", "length": LENGTH, "shared": False, "position_shift": True}
    assert str(tmp_path) not in json.dumps(config["facts"]), "a path of this machine"
    # a file in half precision is compared with the backbone in half precision
    halved = {name: value.half() if value.is_floating_point() else value for name, value in tensors.items()}
    source = released.save(tmp_path / "half", halved, backbone_folder)
    half, _ = embeddings_of(source, "dcpcse", backbone_folder, tmp_path / "of half", pooler=pooler)
    np.testing.assert_allclose(half, found, atol=0.05)


LAYOUT_AND_POOLER = [("training", name) for name in ("cls", "cls_before_pooler", "avg", "avg_top2", "avg_first_last")]
LAYOUT_AND_POOLER += [("hub", "cls"), ("hub", "cls_before_pooler")]  # whose projector has another name there


@pytest.mark.parametrize(("layout", "pooler"), LAYOUT_AND_POOLER)
def test_simcse_gives_the_released_embeddings(backbone_folder, family, pooler, layout, tmp_path):
    model, projector = language_model(backbone_folder, tuned=True), dense()
    tensors = training_layout(family, model, mlp=projector, lm_head=head(family))
    if layout == "hub":  # bare names; the projector is called pooler
        bare = {name.removeprefix(f"{family}."): value for name, value in tensors.items()}
        source = tmp_path / "alone.safetensors"
        save_file({name.replace("mlp.", "pooler.", 1): value for name, value in bare.items()}, source)
    else:
        source = released.save(tmp_path / "released", tensors, backbone_folder)
    found, lines = embeddings_of(source, "simcse", backbone_folder, tmp_path / "out", pooler=pooler)
    states = (released.states(family, model, ids) for ids in released.rows(backbone_folder, TEXTS))
    released.close(found, [released.read(pooler, each, projector) for each in states])
    assert read_config(tmp_path / "out")["parameters"] == "full"
    assert ("pooler.* (2)" in "\n".join(lines)) == (layout == "hub" and pooler != "cls")


@pytest.mark.parametrize("layout", ["training", "hub"])
def test_diffcse_gives_the_released_embeddings(backbone_folder, family, layout, tmp_path):
    model = language_model(backbone_folder, tuned=True)
    outer, wide = "mlp" if layout == "training" else "pooler", 2 * WIDTH
    layers = [nn.Linear(WIDTH, wide, bias=False), nn.BatchNorm1d(wide), nn.ReLU(), nn.Linear(wide, WIDTH, bias=False)]
    projector = nn.Sequential(*layers, nn.BatchNorm1d(WIDTH, affine=False)).state_dict()
    parts = {
        outer: released.before("net.", projector), "lm_head": head(family),
        "discriminator": language_model(backbone_folder),
        "generator": {"distilbert.embeddings.weight": random(64, 8), "vocab_projector.bias": random(64)},
        "electra_head": {"weight": random(2, WIDTH), "bias": random(2)},
    }  # fmt: skip
    tensors = training_layout(family, model, **parts)
    if layout == "hub":
        tensors = {name.removeprefix(f"{family}."): value for name, value in tensors.items()}
    source = released.save(tmp_path / "released", tensors, backbone_folder)
    found, lines = embeddings_of(source, "diffcse", backbone_folder, tmp_path / "out")
    expected = [released.states(family, model, ids)[-1][0, 0] for ids in released.rows(backbone_folder, TEXTS)]
    released.close(found, expected)
    told = "\n".join(lines)
    assert all(f"{name}.* ({len(part)})" in told for name, part in parts.items())
    assert f"left out {len(tensors) - len(model)} tensors" in told, "nothing is dropped in silence"
    said = refusal(import_model, source, "diffcse", str(backbone_folder), tmp_path / "out", pooler="cls")
    assert "normalises over a batch, which serves training only" in said


OWN = 'the cat reads "{sentence}" under {mask} near .'


def at_mask(family, folder, model, text, pushed=0):
    """The last layer's output at the mask of a text."""
    (ids,) = released.rows(folder, [text])
    (mask,) = released.rows(folder, [released.MASK[family]])
    place = np.flatnonzero(ids[0] == mask[0, 1])
    assert len(place) == 1
    return released.states(family, model, ids, pushed=pushed)[-1][0, place[0]]


def filled(family, template, text):
    """The text as the released code builds it; blanks split punctuation, as BERT's tokenizer does alone."""
    sentence = f" {text} " if not text or text[-1] in ".?\"'" else f" {text}. "
    return template.replace("{sentence}", sentence).replace("{mask}", released.MASK[family])


def noise(family, folder, model, template, text):
    """The output at the mask without the sentence; what follows it keeps its positions."""
    full = released.rows(folder, [filled(family, template, text)])[0].shape[1]
    empty = template.replace("{sentence}", " ").replace("{mask}", released.MASK[family])
    (ids,) = released.rows(folder, [empty])
    start = released.rows(folder, [template.split("{sentence}")[0]])[0].shape[1] - 1
    pushed = np.where(np.arange(ids.shape[1]) >= start, full - ids.shape[1], 0)[None]
    return at_mask(family, folder, model, empty, pushed)


@pytest.mark.parametrize("template", [None, OWN], ids=["of the paper", "own"])
def test_promptbert_gives_the_released_embeddings(backbone_folder, family, template, tmp_path):
    model = language_model(backbone_folder, tuned=True)
    tensors = training_layout(family, model | released.before("pooler.", dense(20)), mlp=dense())
    source = released.save(tmp_path / "released", tensors, backbone_folder)
    options = {"pooler": "mask", "template": template}
    found, lines = embeddings_of(source, "promptbert", backbone_folder, tmp_path / "out", **options)
    used = template or dict(LAYOUTS["promptbert"].templates)[family]
    expected = [at_mask(family, backbone_folder, model, filled(family, used, text)) for text in TEXTS]
    released.close(found, expected)
    assert f"template: {used}" in lines
    assert f"{family}.pooler.* (2)" in lines[-1] and "mlp.* (2)" in lines[-1]
    options["template"] = "a {sentence} ."
    said = refusal(import_model, source, "promptbert", str(backbone_folder), tmp_path / "out", **options)
    assert "--template: pooler 'mask' reads the output at {mask}" in said


def transform(vector, projector):
    """The head of BERT's masked language model."""
    p = {name: value.double() for name, value in projector.items()}
    inner = functional.gelu(functional.linear(torch.from_numpy(vector), p["dense.weight"], p["dense.bias"]))
    return functional.layer_norm(inner, inner.shape, p["LayerNorm.weight"], p["LayerNorm.bias"], 1e-12).numpy()


@pytest.mark.parametrize(("family", "layout"), [("roberta", "training"), ("roberta", "hub"), ("bert", "training")])
def test_supervised_promptbert(family, layout, tmp_path):
    """Positions of the template without a sentence start at 2; the released code starts at 0, which a note tells."""
    folder = make_backbone_folder(tmp_path / family, family, head=family == "bert")
    model, projector = language_model(folder, tuned=True), dense()
    if family == "bert":
        projector |= {"LayerNorm.weight": 1 + random(WIDTH, seed=30), "LayerNorm.bias": random(WIDTH, seed=31)}
    tensors = training_layout(family, model, mlp=projector)
    if layout == "hub":  # the projector has overwritten the model's own pooler
        tensors = model | released.before("pooler.", projector)
    source = released.save(tmp_path / "released", tensors, folder)
    options = {"pooler": "mask_delta_org_mlp" if family == "bert" else "mask_delta_use_pooler", "template": OWN}
    found, lines = embeddings_of(source, "promptbert", folder, tmp_path / "out", **options)
    at = (family, folder, model)
    pairs = [(at_mask(*at, filled(family, OWN, text)), noise(*at, OWN, text)) for text in TEXTS]
    if family == "bert":
        expected = [transform(vector, projector) - transform(empty, projector) for vector, empty in pairs]
    else:
        expected = [released.project(vector - empty, projector) for vector, empty in pairs]
        assert any(line.startswith("note: for RoBERTa") for line in lines)
    released.close(found, expected)


@pytest.fixture
def refused(tiny_folders, tmp_path):
    """What is said of a file of PromCSE's tensors after a change, or of a file as it lies there."""
    whole = training_layout("bert", language_model(tiny_folders["bert"]), prefix_encoder=prefix(), mlp=dense())

    def said(change=None, kind="promcse", pooler="cls", source=None, **config):
        if change is not None:
            source = released.save(tmp_path / "released", change(whole), tiny_folders["bert"], **config)
        found = refusal(import_model, source, kind, str(tiny_folders["bert"]), tmp_path / "out", pooler=pooler)
        assert not (tmp_path / "out").exists()
        return found

    return said


QUERY = "bert.encoder.layer.1.attention.self.query.weight"


def without(start):
    return lambda tensors: {name: value for name, value in tensors.items() if not name.startswith(start)}


def tuned(tensors):
    return {name: v + 0.01 if v.is_floating_point() else v for name, v in tensors.items() if "prefix" not in name}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((lambda t: t | {QUERY: t[QUERY] + 1e-3},), f"{QUERY} differs from that of"),
        ((without(QUERY),), f"lacks {QUERY}"),
        ((lambda t: t | {"bert.encoder.layer.3.x": random(WIDTH)},), "bert.encoder.layer.3.x is unknown"),
        ((lambda t: t | {"ghost.weight": random(3)},), "ghost.weight has no place in a promcse model"),
        ((lambda t: t | {"prefix_encoder.ghost": random(3)},), "prefix_encoder.ghost is unknown"),
        ((lambda t: t | {"prefix_encoder.embedding.weight": random(LENGTH, 256)},), "weight has shape (5, 256)"),
        ((lambda t: t | {"prefix_encoder.trans.0.bias": random(9)},), "network of its prefix: 'prefix_encoder.trans.0"),
        ((without("prefix_encoder"),), "lacks prefix_encoder.embedding.weight; a model without its prompts is the"),
        ((without("mlp"),), "holds no projector"),
        ((lambda t: t | {"mlp.dense.weight": random(8, 8)},), "mlp.dense.weight has shape (8, 8)"),
        ((lambda t: t | {"mlp.dense.bias": random(WIDTH) / 0},), "mlp.dense.bias holds values that are not finite"),
        ((lambda t: t | {"mlp.other.bias": random(WIDTH)},), "mlp.other has no place in a projector"),
        ((lambda t: {k.replace("bert.", "roberta."): v for k, v in t.items()},), "as the backbone's, found roberta."),
        ((lambda t: {k.removeprefix("bert."): v for k, v in t.items()},), "no name begins with 'bert.'"),
        ((dict, "promcse", None), "--pooler: no file of promcse says how an embedding is read; give cls"),
        ((dict, "promcse", "avg"), "--pooler avg: not one of cls, cls_before_pooler of promcse"),
        ((tuned, "simcse", "cls_befor_pooler"), "did you mean 'cls_before_pooler'?"),
        ((tuned, "promptbert", "mask_delta_org_mlp"), "a layer with tanh as its projector"),
    ],
)
def test_spoiled_file_or_other_pooler_is_refused_by_name(refused, given, said):
    assert said in refused(*given)


def test_truncated_file_code_in_a_file_and_other_heads(refused, tmp_path):
    assert "num_attention_heads is 8, but" in refused(dict, num_attention_heads=8), "shapes do not tell it"
    source, file = tmp_path / "released", tmp_path / "released/pytorch_model.bin"
    whole = file.read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:cut])
        assert "truncated or not a file of torch" in refused(source=source)
    torch.save({"bert.x": make_backbone_folder}, file)
    assert "holds more than tensors, and no code of a file is run" in refused(source=source)
    torch.save({"bert.x": 3}, file)
    assert "holds no tensors by name; give the file" in refused(source=source)
    save_file({"x": random(100)}, source / "model.safetensors")
    assert "holds model.safetensors and pytorch_model.bin; name the file that counts" in refused(source=source)
    (source / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes()[:-8])
    assert "truncated or not a safetensors file" in refused(source=source / "model.safetensors")


@pytest.mark.parametrize("pooler", ["cls", "cls_before_pooler"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_file_of_the_old_library_gives_its_vectors(family, pooler, tmp_path):
    """Tiny random models put together as PromCSE's classes are, saved by that library, with their embeddings."""
    source = Path(__file__).parents[1] / f"assets/released/promcse-{family}"
    saved = torch.load(source / "pytorch_model.bin", weights_only=True)
    backbone = AutoModel.from_config(AutoConfig.from_pretrained(source), add_pooling_layer=False)
    frozen = {name.removeprefix(f"{family}."): value for name, value in saved.items() if name.startswith(f"{family}.")}
    frozen.pop("embeddings.position_ids")
    backbone.load_state_dict(frozen)
    backbone.save_pretrained(tmp_path / "backbone")
    make_tokenizer(family).save(str(tmp_path / "backbone/tokenizer.json"))

    done = import_model(source, "promcse", str(tmp_path / "backbone"), tmp_path / "out", pooler=pooler)
    recorded = json.loads((source / "vectors.json").read_text())
    ids_BL = torch.tensor(recorded["ids"])
    encoder = SentenceEncoder.load(tmp_path / "out")
    mask_BL = (ids_BL != encoder.backbone.pad_id).long()
    assert mask_BL.sum() < mask_BL.numel(), "no row is padded"
    with torch.no_grad():
        found = embed(encoder, ids_BL, mask_BL).numpy()
    released.close(found, recorded[pooler])
    assert ("multiplied out" in "\n".join(done.lines)) == (family == "roberta")
    assert np.abs(np.subtract(recorded["cls"], recorded["cls_before_pooler"])).max() > 0.1


def test_imported_model_is_a_checkpoint_like_any_other(cse, tiny_folders, tmp_path, monkeypatch):
    """It embeds, and a second import may replace it."""
    monkeypatch.chdir(tmp_path)
    bert = tiny_folders["bert"]
    tensors = training_layout("bert", language_model(bert), prefix_encoder=prefix(), mlp=dense())
    released.save(tmp_path / "promcse", tensors, bert)
    words = f"import promcse --as promcse --backbone {bert} --pooler cls_before_pooler --out".split()
    done = cse(*words, "model")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == "model: checkpoint of promcse (promcse); try `cse evaluate model`"
    assert cse(*words, "model").code == 0
    assert cse("encode", "model", "--out", "vectors.npy", stdin=b"a cat sleeps\na dog\n").code == 0
    found = np.load(tmp_path / "vectors.npy")
    np.testing.assert_array_equal(found, library.SentenceEncoder.load("model").encode(["a cat sleeps", "a dog"]))
    assert CHOICES == KINDS, "the choices that the command names"
