"""Terms with passes or weights of their own, against numpy, transformers, finite differences and loops by hand."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.special import log_softmax, logsumexp, rel_entr, softmax
from transformers import AutoModelForMaskedLM

from cse.losses.contrastive_tension import ContrastiveTension
from cse.losses.distillation import Distillation
from cse.losses.label_proxies import LabelProxies
from cse.losses.masked_lm import MaskedLm, mask_tokens
from cse.losses.mutual_information import MutualInformation
from cse.losses.nli_softmax import NliSoftmax
from cse.model.backbone import load_backbone
from cse.model.mlm_head import load_mlm_head
from cse.model.sentence_encoder import SentenceEncoder
from cse.settings import objective as of
from cse.training.losses import Losses, bare_teacher
from tests.gpu.base import CPU, fit
from tests.model import reference
from tests.parts import Cut, backbone_of, embed, moved, new_plan, prompted, replan, slopes
from tests.training.helpers import (
    Fours,
    copies,
    embed_rows,
    make_table,
    momentum_queue,
    replaced_tokens_term,
    self_guided_term,
)  # fmt: skip
from tests.training.systems import swap_some

PLAN = new_plan(learning_rate=0.02, batch_size=8, cut=Cut(3, None), seed=5)
ROWS = np.array([3, 17, 0, 9, 31])
LAYERS, WIDTH, LENGTH = 3, 32, 4


def make_encoder(backbone, *, prompt=True, **options) -> SentenceEncoder:
    return prompted(backbone, "key_value" if prompt else None, LENGTH, init_std=0.5, **options)


def ids_of(column, row: int) -> torch.Tensor:
    return torch.from_numpy(column.row(row).astype(np.int64))[None]


def in_float64(encoder, batch):
    """The batch as it is before the loop rounds what the loss compares to float32."""
    pooled = batch.layout.join([piece.tokens.pooled_BD for piece in batch.slices])
    return replace(batch, projected_XD=encoder.project(pooled))


def value_of(term, encoder, table, plan=PLAN, **changes):
    """The term of a batch, and the batch."""
    with torch.no_grad():
        batch = replace(embed_rows(encoder, table, ROWS, plan), **changes)
        return term(batch).item(), batch


def swap_none(rows, device, epoch):
    return torch.from_numpy(rows.ids_BL)


def detector(encoder, source=swap_some, **options):
    torch.manual_seed(4)
    term = replaced_tokens_term(encoder, source, weight=0.5, **options)
    with torch.no_grad():
        term.head.weight.mul_(20)
        term.head.bias.copy_(torch.tensor([0.3, -0.2]))
    return term


def expected_detection(encoder, term, batch, h, *, prefix, shift, normalize, body=None):
    """The whole term in numpy: pass with ``h`` in front (None: the ordinary first token), head, cross-entropy."""
    total = count = 0.0
    head = {name: value.detach().double().numpy() for name, value in term.head.state_dict().items()}
    for piece in batch.slices:
        ids, mask = piece.ids_BL.numpy(), piece.mask_BL.numpy()
        corrupted = swap_some(piece.rows, torch.device("cpu"), batch.epoch).numpy()
        if normalize == "positions":  # the longest row of the batch sets how far all slices are padded
            missing = ((0, 0), (0, batch.longest - ids.shape[1]))
            pad_id = encoder.backbone.pad_id
            ids, corrupted = (np.pad(each, missing, constant_values=pad_id) for each in (ids, corrupted))
            mask = np.pad(mask, missing)
        first = None if h is None else h[piece.places.numpy()]
        read, how = body or encoder.backbone, {"prefix": prefix, "shift": shift, "first": first}
        logits = reference.states_of(read, corrupted, mask, **how)[-1] @ head["weight"].T + head["bias"]
        labels = ((corrupted != ids) & (mask == 1)).astype(int)
        assert 0 < labels.sum() < mask.sum()
        losses = -np.take_along_axis(log_softmax(logits, axis=-1), labels[..., None], axis=-1)[..., 0]
        if normalize != "positions":
            losses = losses * mask
        total += losses.sum()
        count += {"positions": mask.size, "tokens": mask.sum(), "sum": len(mask)}[normalize]
    return total / count


def expected_projections(encoder, batch):
    """What the loss compares, ``(V * B, D)``, in numpy from what is pooled."""
    x = batch.layout.join([piece.tokens.pooled_BD for piece in batch.slices]).numpy()
    w = {name: value.double().numpy() for name, value in encoder.mlp.state_dict().items()}
    if encoder.read_out.projector == "tanh":
        return np.tanh(reference.linear(x, w, "dense"))

    def norm(x):
        return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)

    wide = norm(x @ w["wide.weight"].T) * w["wide_norm.weight"] + w["wide_norm.bias"]
    return norm(np.maximum(wide, 0) @ w["narrow.weight"].T)


@pytest.mark.parametrize(("projector", "normalize", "options"), [
    ("tanh", "positions", {}), ("tanh", "tokens", {}), ("tanh", "sum", {}), ("batch_norm", "tokens", {}),
    ("tanh", "positions", {"condition": False}), ("tanh", "positions", {"discriminator": "frozen"}),
    ("tanh", "positions", {"discriminator": "copy"}),
])  # fmt: skip
def test_detection_equals_numpy(backbone, projector, normalize, options):
    """D2CSE: the same prompts in both passes, the projected embedding in place of ``[CLS]``; DiffCSE: no prompts."""
    encoder = make_encoder(backbone, mlp="train_only", projector=projector).eval()
    term = detector(encoder, normalize=normalize, **options)
    if term.copy is not None:
        with torch.no_grad():  # a copy that has moved on
            for weight in term.copy.parameters():
                weight.mul_(1.1)
    tolerance = 1e-4
    if projector == "tanh":  # batch norm runs in float32
        encoder.double(), term.double()
        tolerance = 1e-9
    with torch.no_grad():
        batch = in_float64(encoder, embed_rows(encoder, make_table(backbone), ROWS, PLAN))
        found = term(batch).item()
    h = expected_projections(encoder, batch)
    np.testing.assert_allclose(batch.projected_XD.numpy(), h, atol=tolerance)
    shared, table = "discriminator" not in options, encoder.prompt.table.detach().double().numpy()
    expected = expected_detection(
        encoder, term, batch, h if options.get("condition", True) else None, normalize=normalize, body=term.copy,
        prefix=reference.key_value_prefix(table, LAYERS, WIDTH) if shared else None, shift=LENGTH if shared else 0,
    )  # fmt: skip
    assert found == pytest.approx(expected, rel=tolerance)
    assert len(batch.slices) == 3 and any((piece.mask_BL == 0).any() for piece in batch.slices)


def test_gradient_reaches_the_prompts_through_the_embedding_too(backbone):
    """Finite differences of the whole term; what is left without the embedding's gradient is not enough."""
    encoder = make_encoder(backbone).double().eval()
    term = detector(encoder).double()
    table = make_table(backbone)
    prompt = encoder.prompt.table

    def value(detached=False):
        batch = in_float64(encoder, embed_rows(encoder, table, ROWS, PLAN))
        return term(replace(batch, projected_XD=batch.projected_XD.detach()) if detached else batch)

    (gradient,) = torch.autograd.grad(value(), prompt)
    (second_pass,) = torch.autograd.grad(value(detached=True), prompt)
    found, expected = slopes(value, prompt, 1e-4)
    assert found == pytest.approx(expected, rel=1e-5)
    assert (gradient - second_pass).norm() > 0.05 * gradient.norm()
    assert second_pass.norm() > 0


def test_both_passes_share_a_draw_of_prompt_dropout(bert):
    """Without corruption, condition and other dropout, a second pass behind the same prompts repeats the first."""
    bert.switch_dropout_off()
    encoder = make_encoder(bert, dropout=0.5).train()
    batch = embed_rows(encoder, make_table(bert), ROWS, PLAN)
    term = detector(encoder, swap_none, condition=False, normalize="tokens")
    logits = [term.head(piece.tokens.states[-1])[piece.mask_BL == 1] for piece in batch.slices]
    torch.testing.assert_close(term(batch), -torch.cat(logits).log_softmax(-1)[:, 0].mean(), rtol=1e-6, atol=0)


@pytest.fixture
def with_head(folders, family):
    return backbone_of(folders[family])


def masked_lm_term(encoder, *, share=0.4, weight=0.1, train_head=False) -> MaskedLm:
    head = load_mlm_head(encoder.backbone, wanted_by="objective.masked_lm.weight")
    made = MaskedLm(encoder, of.MaskedLmSettings(weight=weight, train_head=train_head), head, seed=8)
    made.mask_share = share
    return made


def test_masked_lm_equals_transformers(with_head, folders, family):
    encoder = make_encoder(with_head, prompt=False).eval()
    term, table = masked_lm_term(encoder), make_table(with_head)
    found, batch = value_of(term, encoder, table, replan(PLAN, cut=Cut(1, None)), epoch=2)
    assert 0.2 * term.decay(100) == pytest.approx(0.19)
    (piece,) = batch.slices
    rows = piece.rows
    masked, chosen = mask_tokens(
        rows.ids_BL, rows.mask_BL, rows.index_BL, rows.views, term.vocabulary, share=0.4, seed=8, epoch=2
    )
    assert chosen.sum() > 10
    model = AutoModelForMaskedLM.from_pretrained(folders[family]).eval()
    labels = torch.where(torch.from_numpy(chosen), piece.ids_BL, -100)
    with torch.no_grad():
        expected = model(torch.from_numpy(masked), piece.mask_BL, labels=labels).loss.item()
    assert found == pytest.approx(expected, rel=1e-5)
    # in slices by length: the same tokens are masked, the mean is over all of them
    assert value_of(term, encoder, table, epoch=2)[0] == pytest.approx(expected, rel=1e-5)


def test_a_copy_of_the_head_is_trained(with_head, tmp_path):
    encoder = make_encoder(with_head)
    term = masked_lm_term(encoder, weight=1.0, train_head=True)
    before, head = copies(with_head.state_dict()), copies(term.head.state_dict())
    fit((encoder, Losses({"masked_lm": term}), make_table(with_head)), PLAN, tmp_path, CPU)
    assert all(torch.equal(before[name], weight) for name, weight in with_head.state_dict().items())
    changed = {name for name, weight in term.head.state_dict().items() if not torch.equal(head[name], weight)}
    assert changed == {"dense.weight", "dense.bias", "norm.weight", "norm.bias", "bias", "decoder"}


def one_view(backbone, rows=40):
    table = make_table(backbone, rows, "sentences")
    return replace(table, columns=table.columns[:1])


def test_contrastive_tension_equals_dot_products_by_hand(bert):
    encoder = make_encoder(bert, prompt=False, pooler="mean", trained="full").eval()
    term = ContrastiveTension(encoder, Fours(weight=1.0))
    moved(term.second, 0.01)
    with torch.no_grad():
        rows = make_table(bert, 40, "sentences")  # the second copy is for other terms
        found = term(embed_rows(encoder, rows, np.arange(10), PLAN)).item()
        assert term(embed_rows(encoder, rows, np.arange(3), PLAN)).item() == 0, "no whole group"
        table, losses = rows.columns[0], []
        for anchor in (0, 4):
            for row in range(anchor, anchor + 4):
                read = (encoder, ids_of(table, anchor)), (term.second.eval(), ids_of(table, row))
                first, second = (embed(model, ids, torch.ones_like(ids))[0] for model, ids in read)
                losses.append(-F.logsigmoid((1 if row == anchor else -1) * (first @ second)).item())
    assert found == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize("frozen", [True, False])
def test_the_target_is_the_mean_cosine_of_teachers_who_stay(bert, tmp_path, frozen):
    """The bare backbone and another prompt, after a training; over texts of other rows, in several slices."""
    encoder = make_encoder(bert, prompt=frozen, trained="prompts" if frozen else "full")
    bare = SentenceEncoder(copy.deepcopy(encoder.backbone))
    other = prompted(copy.deepcopy(encoder.backbone), length=3, pooler="mean")
    settings = of.DistillationSettings(weight=1.0, temperature=0.2)
    term = Distillation(encoder, settings, [bare_teacher(encoder), other])
    fit((encoder, Losses({"distillation": term}), one_view(bert)), PLAN, tmp_path, CPU)
    found, batch = value_of(term, encoder.eval(), make_table(bert))
    texts = len(batch.projected_XD)
    assert len(batch.slices) > 1 and texts == 3 * len(ROWS)

    def cosines(vectors: np.ndarray) -> np.ndarray:
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return unit @ unit.T

    def read(teacher) -> np.ndarray:
        vectors = np.zeros((texts, WIDTH))
        for piece in batch.slices:
            vectors[piece.places.numpy()] = embed(teacher.eval(), piece.ids_BL, piece.mask_BL).detach().numpy()
        return vectors

    target = np.mean([cosines(read(teacher)) for teacher in (bare, other)], axis=0)
    own = np.equal.outer(np.arange(texts) % 5, np.arange(texts) % 5)
    both = (np.where(own, -np.inf, each / 0.2) for each in (target, cosines(batch.projected_XD.numpy())))
    divergence = rel_entr(*(softmax(each, axis=1) for each in both)).sum() / texts
    assert found == pytest.approx(divergence, rel=1e-4)
    assert divergence > 1e-3
    assert not any(weight.requires_grad for weight in term.parameters())


def test_self_guided_equals_numpy(backbone):
    """And pulls the weights to where they started."""
    encoder = make_encoder(backbone, prompt=False, trained="full").eval()
    term, before = self_guided_term(encoder), copies(encoder.trainable())
    moved(encoder, 0.01)  # the clone stays behind
    squares = sum((weight - before[name]).double().square().sum() for name, weight in encoder.trainable().items())
    (found, batch), (pulled, _) = (value_of(term, encoder, one_view(backbone)) for term.regularizer in (0.0, 100.0))
    assert pulled - found == pytest.approx(100 * squares.item(), rel=1e-4)

    def unit(x):
        w = {name: value.double().numpy() for name, value in term.project.state_dict().items()}
        for layer in ("0", "2"):
            x = reference.gelu(reference.linear(x, w, layer))
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    anchors, layers = np.zeros((5, WIDTH)), np.zeros((5, LAYERS + 1, WIDTH))
    for piece in batch.slices:
        ids, mask, places = piece.ids_BL.numpy(), piece.mask_BL.numpy(), piece.places.numpy()
        anchors[places] = reference.states_of(backbone, ids, mask)[-1][:, 0]
        for number, state in enumerate(reference.states_of(term.clone, ids, mask)):
            layers[places, number] = (state * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    scores = np.einsum("id,jkd->ijk", unit(anchors), unit(layers)) / 0.1
    losses = []
    for i in range(5):
        others = np.delete(scores[i], i, axis=0).ravel()
        losses += [logsumexp([own, *others]) - own for own in scores[i, i]]
    assert found == pytest.approx(np.mean(losses), rel=1e-4)


@pytest.mark.parametrize("frozen", [True, False])
def test_the_queue_follows_the_encoder_as_by_hand(bert, frozen):
    options = {"prompt": frozen, "pooler": "mean", "trained": "prompts" if frozen else "full"}
    encoder = make_encoder(bert, **options).train()
    bystander = make_encoder(bert if frozen else load_backbone(bert.files), **options)
    queue, table = momentum_queue(encoder, size=12, momentum=0.9), make_table(bert)
    follower, kept, body = copies(encoder.trainable()), [], copies(bert.state_dict())
    assert queue.negatives() is None
    for step in range(4):
        rows = np.arange(5) + 5 * step
        queue.take_in(embed_rows(moved(encoder, 0.05), table, rows, PLAN))
        assert encoder.training and encoder.backbone.model.encoder.layer[0].training
        for name, weight in encoder.trainable().items():
            follower[name] = 0.9 * follower[name] + 0.1 * weight.detach()
            bystander.get_parameter(name).data.copy_(follower[name])
        with torch.no_grad():
            new = embed_rows(bystander.eval(), table, rows, replan(PLAN, cut=Cut(1, None))).views[0]
        encoder.train()  # as the evaluation above switched the backbone that both share
        kept = [*new, *kept][:12]
        torch.testing.assert_close(queue.negatives(), torch.stack(kept), atol=2e-5, rtol=0)
    assert not queue.negatives().requires_grad
    assert (queue.follower[0].backbone is encoder.backbone) == frozen
    assert not frozen or all(torch.equal(body[name], weight) for name, weight in bert.state_dict().items())


def test_the_queue_sees_a_batch_norm_projector_as_the_loss_does(bert):
    """All anchors are normalised together, whatever the slices."""
    encoder = make_encoder(bert, mlp="train_only", projector="batch_norm").eval()
    table, found = make_table(bert, 40, "sentences"), []
    for groups in (1, 4):
        queue = momentum_queue(encoder, size=9, momentum=0.5)
        queue.take_in(embed_rows(encoder, table, np.arange(9), replan(PLAN, cut=Cut(groups, None))))
        found.append(queue.negatives())
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)
    assert found[0].mean(dim=0).abs().max() < 1e-5, "not normalised over the anchors"


def test_mutual_information_equals_a_loop_over_tokens_and_sentences(bert):
    encoder = make_encoder(bert, pooler="cnn").eval()
    found, batch = value_of(MutualInformation(encoder, of.MutualInformationSettings()), encoder, one_view(bert))
    column, own, other, sentences, tokens = one_view(bert).columns[0], [], [], [], []
    with torch.no_grad():
        for row in ROWS:
            ids = ids_of(column, row)
            made = encoder.pooled(ids, torch.ones_like(ids), encoder.constants())
            sentences.append(made.pooled_BD[0])
            tokens.append(made.local_BLD[0])
    for i, local in enumerate(tokens):
        for j, sentence in enumerate(sentences):
            scores = (local @ sentence).double()
            (own if i == j else other).extend((F.softplus(-scores) if i == j else F.softplus(scores)).tolist())
    assert found == pytest.approx(np.mean(own) + np.mean(other), rel=1e-5)
    torch.testing.assert_close(batch.projected_XD, torch.stack(sentences), atol=1e-5, rtol=1e-5)


def test_labels_follow_their_rows_through_the_classifier(bert):
    encoder = make_encoder(bert, pooler="mean").eval()
    term = NliSoftmax(encoder, of.NliSoftmaxSettings())
    table = replace(make_table(bert, 40, "pairs"), labels=np.random.default_rng(3).integers(0, 3, 40))
    found, batch = value_of(term, encoder, table)
    w, b = (value.detach().double().numpy() for value in term.classify.parameters())
    losses = []
    for row in ROWS:
        both = [ids_of(column, row) for column in table.columns]
        u, v = (embed(encoder, ids, torch.ones_like(ids))[0].detach().double().numpy() for ids in both)
        losses.append(-log_softmax(w @ np.concatenate([u, v, abs(u - v)]) + b)[table.labels[row]])
    assert batch.labels_B.tolist() == table.labels[ROWS].tolist()
    assert found == pytest.approx(np.mean(losses), rel=1e-5)
    names = {f"loss.terms.nli_softmax.classify.{part}" for part in ("weight", "bias")}
    assert set(Losses({"nli_softmax": term}).trainable()) == names


def test_both_texts_of_a_pair_are_drawn_to_their_label(bert):
    encoder = make_encoder(bert, pooler="mean").eval()
    term = LabelProxies(encoder, of.LabelProxiesSettings(), 4)
    table = replace(make_table(bert, 40, "pairs"), labels=np.random.default_rng(3).integers(-1, 4, 40))
    found, batch = value_of(term, encoder, table)
    z, proxies = (F.normalize(each, dim=1).detach().double().numpy() for each in (torch.cat(batch.views), term.proxies))
    labels = np.tile(table.labels[ROWS], 2)
    known = [-log_softmax(row @ proxies.T / 0.1)[label] for row, label in zip(z, labels, strict=True) if label >= 0]
    assert len(known) not in (0, len(labels))
    assert found == pytest.approx(np.mean(known), rel=1e-5)
    losses = Losses({"label_proxies": term})
    assert losses.rates() == {"loss.terms.label_proxies.proxies": 0.01}
    assert set(losses.trainable()) == set(losses.rates())
