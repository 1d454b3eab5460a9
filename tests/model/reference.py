"""BERT and RoBERTa with deep prompts, written out in numpy float64 from the papers: no torch, no library code."""

import numpy as np
from scipy.special import erf, softmax


def hidden_states(
    weights, ids_BL, mask_BL, *, layers, heads, prefix, shift, family, pad_id, eps, words=None, front=None, first=None,
    pushed=0,
):  # fmt: skip
    """Outputs of the embeddings and of every layer, each (B, L, D); ``prefix`` has one (key, value) (P, D) a layer.

    ``words`` (B, L, D) stands in for the word vectors of the ids, ``front`` (P, D) goes through all layers before the
    tokens (normalised, without position or type), ``first`` (B, D) takes the place of the first token behind the
    embedding LayerNorm, ``pushed`` (B, L) is added to the positions.
    """
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    rows, length = ids_BL.shape
    if family == "bert":
        positions = np.broadcast_to(np.arange(length) + shift, (rows, length))
    else:
        positions = np.where(mask_BL == 1, mask_BL.cumsum(axis=1) + shift + pad_id, pad_id)
    positions = positions + pushed
    x = w["embeddings.word_embeddings.weight"][ids_BL] if words is None else words
    x = x + w["embeddings.position_embeddings.weight"][positions] + w["embeddings.token_type_embeddings.weight"][0]
    x = norm(x, w, "embeddings.LayerNorm", eps)
    if first is not None:
        x = np.concatenate([first[:, None], x[:, 1:]], axis=1)
    if front is not None:
        before = np.broadcast_to(norm(front, w, "embeddings.LayerNorm", eps), (rows, *front.shape))
        x = np.concatenate([before, x], axis=1)
        mask_BL = np.concatenate([np.ones((rows, len(front)), dtype=mask_BL.dtype), mask_BL], axis=1)
    states = [x]
    for layer in range(layers):
        name = f"encoder.layer.{layer}."
        x = norm(x + attend(x, mask_BL, w, name, heads, None if prefix is None else prefix[layer]),
                 w, name + "attention.output.LayerNorm", eps)  # fmt: skip
        inner = gelu(linear(x, w, name + "intermediate.dense"))
        x = norm(x + linear(inner, w, name + "output.dense"), w, name + "output.LayerNorm", eps)
        states.append(x)
    return states


def states_of(backbone, ids_BL, mask_BL, *, prefix=None, shift=0, **more):
    """``hidden_states`` with the weights and sizes of a ``Backbone``."""
    weights = {name: weight.detach().numpy() for name, weight in backbone.model.state_dict().items()}
    return hidden_states(
        weights, np.asarray(ids_BL), np.asarray(mask_BL), layers=backbone.layers, heads=backbone.heads, prefix=prefix,
        shift=shift, family=backbone.family.name, pad_id=backbone.pad_id, eps=backbone.model.config.layer_norm_eps,
        **more,
    )  # fmt: skip


def attend(x_BLD, mask_BL, w, name, heads, prefix):
    def split(x):  # (..., L, D) into (..., H, L, K)
        return x.reshape(*x.shape[:-1], heads, -1).swapaxes(-3, -2)

    query, key, value = (split(linear(x_BLD, w, f"{name}attention.self.{part}")) for part in ("query", "key", "value"))
    bias, before = np.where(mask_BL == 1, 0.0, -np.inf)[:, None, None], None if prefix is None else map(split, prefix)
    out = attention(query, key, value, bias=bias, scaling=query.shape[-1] ** -0.5, prefix=before)
    return linear(out.reshape(x_BLD.shape), w, name + "attention.output.dense")


def attention(query, key, value, *, bias, scaling, prefix):
    """Of (B, H, L, K), (B, L, H, K); ``prefix`` (key, value) ([B,] H, P, K), ``bias`` is added to scores of tokens."""
    if prefix is not None:
        before = (np.broadcast_to(own, (len(query), *own.shape[-3:])) for own in prefix)
        key, value = (np.concatenate([own, x], axis=2) for own, x in zip(before, (key, value), strict=True))
    key, value = (np.repeat(x, query.shape[1] // x.shape[1], axis=1) for x in (key, value))
    scores = np.einsum("bhik,bhjk->bhij", query, key) * scaling
    if bias is not None:
        scores[..., -bias.shape[-1] :] += bias
    return np.einsum("bhij,bhjk->bihk", softmax(scores, axis=-1), value)


def linear(x, w, name):
    return x @ w[name + ".weight"].T + w[name + ".bias"]


def norm(x, w, name, eps):
    centred = x - x.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    return scaled * w[name + ".weight"] + w[name + ".bias"]


def gelu(x):
    return x * 0.5 * (1 + erf(x / np.sqrt(2)))


def key_value_prefix(table, layers, width):
    """A table (P, 2 * layers * D) as one (key, value) pair (P, D) a layer."""
    cut = table.reshape(len(table), layers, 2, width)
    return [(cut[:, layer, 0], cut[:, layer, 1]) for layer in range(layers)]
