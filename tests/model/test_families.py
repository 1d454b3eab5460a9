"""Prompts on every family: against the library's whole model with attention written out in numpy, in float64."""

import math

import numpy as np
import pytest
import torch
from onnx import load as load_graph
from transformers import AttentionInterface, AutoModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.models.mpnet import modeling_mpnet

from cse.export.bundle import write_bundle
from cse.model.families import FAMILIES
from cse.runtime.onnx_encoder import OnnxEncoder
from tests.model import reference
from tests.model.families import CASES, make_family_folder
from tests.parts import backbone_of, embed, prompted, sentence_encoder, slopes

LENGTHS = (12, 5, 9)  # tokens of the rows: longer than the windows


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("families")
    return {name: make_family_folder(root / str(number), name) for number, name in enumerate(CASES)}


@pytest.fixture(params=list(CASES))
def folder(request, folders):
    return folders[request.param]


# one of each model class; the others differ in size or in the order of their layers
DISTINCT = (
    "bert", "roberta", "electra", "distilbert", "mpnet", "albert, two groups of two", "modernbert", "nomic_bert",
    "eurobert", "llama, wide heads, no added tokens", "qwen3", "gemma3", "gemma3, both ways",
)  # fmt: skip


@pytest.fixture(params=DISTINCT)
def distinct(request, folders):
    return folders[request.param]


@pytest.fixture
def rows():
    mask_BL = torch.tensor([[1] * n + [0] * (max(LENGTHS) - n) for n in LENGTHS])
    ids_BL = torch.randint(5, 60, mask_BL.shape, generator=torch.Generator().manual_seed(1))
    return ids_BL, mask_BL


def test_every_family_has_a_case(folders):
    assert {backbone_of(folder).family.name for folder in folders.values()} == {family.name for family in FAMILIES}
    assert {backbone_of(folder).model.config.model_type for folder in folders.values()} == {
        kind for family in FAMILIES for kind in family.types
    }


def attend(query, key, value, mask, scaling, prefix):
    """Attention of tensors in numpy, see ``reference``."""
    given, bias = [x.detach().numpy() for x in (query, key, value)], None if mask is None else mask.numpy()
    return torch.from_numpy(reference.attention(*given, bias=bias, scaling=scaling, prefix=prefix))


class Reference:
    """The library's own model in float64; the n-th attention of a pass gets the n-th layer's prompt."""

    def __init__(self, folder, monkeypatch):
        self.model = AutoModel.from_pretrained(folder, dtype=torch.float64).eval()
        self.prefix, self.calls = None, 0
        AttentionInterface.register("written_out", self._interface)
        AttentionMaskInterface.register("written_out", eager_mask)
        if self.model.config.model_type == "mpnet":
            monkeypatch.setattr(
                modeling_mpnet.MPNetSelfAttention, "forward", lambda *given, **more: self._mpnet(*given, **more)
            )
        self.model.set_attn_implementation("eager" if self.model.config.model_type == "mpnet" else "written_out")

    def states(self, ids_BL, mask_BL, prefix, shift):
        self.prefix, self.calls = prefix, 0
        kind = self.model.config.model_type
        positions = torch.arange(ids_BL.shape[1]).expand_as(ids_BL) + shift
        if kind in ("roberta", "xlm-roberta", "camembert", "mpnet"):
            positions = torch.where(mask_BL == 1, mask_BL.cumsum(dim=1) + 1 + shift, 1)
        given = {"inputs_embeds": self._words(ids_BL, shift)} if kind == "distilbert" else {
            "input_ids": ids_BL, "position_ids": positions
        }  # fmt: skip
        with torch.no_grad():
            found = self.model(attention_mask=mask_BL, **given).last_hidden_state
        assert prefix is None or self.calls == len(prefix)
        return found

    def _words(self, ids_BL, shift):
        """DistilBERT takes no positions: move them into the word vectors."""
        table = self.model.embeddings.position_embeddings.weight
        length = ids_BL.shape[1]
        return self.model.embeddings.word_embeddings(ids_BL) + table[shift : shift + length] - table[:length]

    def _next(self):
        self.calls += 1
        return None if self.prefix is None else self.prefix[self.calls - 1]

    def _interface(self, module, query, key, value, attention_mask, scaling=None, **_):
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        return attend(query, key, value, attention_mask, scaling, self._next()), None

    def _mpnet(self, module, hidden_states, attention_mask=None, position_bias=None, **_):
        shape = (*hidden_states.shape[:-1], -1, module.attention_head_size)
        query, key, value = (
            linear(hidden_states).view(shape).transpose(1, 2) for linear in (module.q, module.k, module.v)
        )
        mask = position_bias + attention_mask
        scaling = 1 / math.sqrt(module.attention_head_size)
        return (module.o(attend(query, key, value, mask, scaling, self._next()).flatten(-2)),)


def real(states_BLD, mask_BL):
    return (states_BLD * mask_BL[..., None]).numpy()


@pytest.mark.parametrize(("kind", "shift"), [("key_value", 3), ("hidden_state", 0)])
def test_states_equal_the_library_with_attention_written_out(folder, rows, kind, shift, monkeypatch):
    encoder = prompted(backbone_of(folder), kind, 3, position_shift=bool(shift), pooler="mean").double()
    with torch.no_grad():
        prefix = encoder.prefix()
        found = encoder.states(*rows, prefix)[-1]
        bare = encoder.states(*rows, None)[-1]
    blocks = [(key.detach().numpy(), value.detach().numpy()) for key, value in prefix]
    expected = Reference(folder, monkeypatch).states(*rows, blocks, shift)
    np.testing.assert_allclose(real(found, rows[1]), real(expected, rows[1]), atol=2e-6)
    assert np.abs(real(found, rows[1]) - real(bare, rows[1])).max() > 0.05, "the prompt changed nothing"


def test_gradient_equals_finite_differences(folder, rows):
    encoder = prompted(backbone_of(folder), length=3, position_shift=False, pooler="mean").double()
    table, generator = encoder.prompt.table, torch.Generator().manual_seed(5)
    target = torch.randn((len(LENGTHS), encoder.dimension), generator=generator, dtype=torch.float64)

    def loss():
        return (embed(encoder, *rows) * target).sum()

    loss().backward()
    assert (table.grad.view(len(table), encoder.backbone.layers, 2, -1).abs().sum(dim=-1) > 0).all()
    assert all(weight.grad is None for weight in encoder.backbone.parameters())
    found, expected = slopes(loss, table, 1e-2)  # norms of decoders are in float32
    assert found == pytest.approx(expected, rel=2e-4)


SENTENCES = ["the cat sits on the mat", "", "red " * 30, "a small bird", "two friends read music in the old house"]


@pytest.mark.slow
@pytest.mark.usefixtures("openvino_in_float32")
def test_exported_bundle_equals_torch(distinct, tmp_path):
    backbone = backbone_of(distinct)
    pooler, shift = "last" if backbone.family.causal else "mean", backbone.family.positions != "rotary"
    encoder = prompted(backbone, length=3, position_shift=shift, pooler=pooler)
    with write_bundle(encoder, tmp_path / "bundle", normalize=True, metrics={}):
        pass
    expected = encoder.encode(SENTENCES)
    nodes = load_graph(tmp_path / "bundle" / "model.onnx", load_external_data=False).graph.node
    assert sum(node.op_type == "Attention" for node in nodes) == backbone.layers
    for provider in ("cpu", "openvino"):
        served = OnnxEncoder(tmp_path / "bundle", provider=provider)
        np.testing.assert_allclose(served.encode(SENTENCES), expected, atol=2e-6)
        np.testing.assert_allclose(np.stack([served.encode(text) for text in SENTENCES]), expected, atol=2e-6)


def test_dropout_of_attention_makes_two_copies_differ(distinct, rows):
    backbone = backbone_of(distinct)
    encoder = sentence_encoder(backbone, pooler="mean").train()
    backbone.set_attention_dropout(0.5)
    backbone.switch_dropout_off()
    assert torch.equal(embed(encoder, *rows), embed(encoder, *rows))
    backbone.set_attention_dropout(0.3)
    assert (embed(encoder, *rows) - embed(encoder, *rows)).abs().max() > 1e-4
    encoder.eval()
    assert torch.equal(embed(encoder, *rows), embed(encoder, *rows))
