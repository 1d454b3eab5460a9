"""Write an encoder as a folder that ``SentenceTransformer(folder, trust_remote_code=True)`` loads."""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import sentence_transformers
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers import dynamic_module_utils

from cse.errors import CseError
from cse.export.parity import check_parity
from cse.files import write_json
from cse.interchange import prompted_transformer
from cse.interchange.foreign import obstacle, stacked_prefix
from cse.interchange.prompted_transformer import PromptedTransformer
from cse.model import dropout, families, passes, transformer
from cse.model.backbone import merged
from cse.model.backbone_files import quietly
from cse.model.declared import LENGTH, MODULES, PROMPTS
from cse.model.pooling import ACTIVATIONS, TanhMlp
from cse.model.post import LinearMap
from cse.model.sentence_encoder import SentenceEncoder
from cse.model.transformer import Transformer
from cse.outputs import Kind, publish_folder
from cse.runtime.classifier import Classifier
from cse.runtime.tokens import plain_copy
from cse.runtime.uses import QUERY, role_for

TOOL = "sentence-transformers"
_CODE = (prompted_transformer, dropout, families, passes, transformer)
_OWN = re.compile(r"^from cse\.\w+\.(\w+) import", re.MULTILINE)
_REGISTERED = f'"{passes.PREFIX_ATTENTION}"'
# our poolers, in the words that every version reads
_MODES = {"cls": "cls_token", "mean": "mean_tokens", "last": "lasttoken"}
_MODULES = "sentence_transformers.models"  # the name that every version since 2 knows


def export_sentence_transformers(
    encoder: SentenceEncoder,
    out: Path,
    sentences: Sequence[str],
    *,
    normalize: bool,
    tolerance: float,
    classifier: Classifier | None = None,
) -> dict[str, Any]:
    """Write the folder, load it back and publish it if it gives the encoder's vectors; see ``check_parity``.

    A classifier is a file beside the model: the library does not read it.
    """
    reason = obstacle(encoder)
    if not reason and encoder.read_out.mlp == "always" and not isinstance(encoder.mlp, TanhMlp):
        reason = f"its projector is {encoder.read_out.projector}, not tanh"
    if reason:
        raise CseError(f"--format {TOOL}: this model has no such form, because {reason}; use --format onnx")
    with quietly(), merged(encoder.backbone), publish_folder(out, Kind.SENTENCE_TRANSFORMERS) as folder:
        write_folder(encoder, folder, normalize=normalize)
        if classifier is not None:
            classifier.write(folder)
        with _loaded_back(folder) as model:
            return check_parity(encoder, _LoadedModel(model), sentences, tolerance=tolerance, name=TOOL)


def write_folder(encoder: SentenceEncoder, folder: Path, *, normalize: bool) -> None:
    """Write an encoder into an empty folder.

    Without prompt and trained ``[CLS]`` it is an ordinary model, which needs no code of its own. With a query side, its
    first module is a Router, whose routes share all that both sides have: all modules are for queries, those that a
    bare encoder has for documents.
    """
    documents: SentenceEncoder = encoder.documents or encoder
    routed = documents is not encoder
    start = folder / "0_Transformer" if routed else folder
    start.mkdir(exist_ok=True)
    if encoder.prompt is None and encoder.cls is None and encoder.max_length == documents.max_length:
        _write_ordinary(encoder, start)
        kind = f"{_MODULES}.Transformer"
    else:
        PromptedTransformer(
            Transformer(encoder.backbone.model),
            plain_copy(encoder.backbone.tokenizer),
            stacked_prefix(encoder),
            None if encoder.cls is None else encoder.cls.detach().clone(),
            max_seq_length=documents.max_length,
            position_shift=encoder.shift > 0,
            frozen=encoder.frozen,
            query_length=encoder.max_length if encoder.side == QUERY else None,
        ).save(str(start))
        _copy_code(folder)
        kind = f"{prompted_transformer.__name__.rpartition('.')[2]}.{PromptedTransformer.__name__}"
    types = [(start.name if routed else "", kind), ("1_Pooling", f"{_MODULES}.Pooling")]
    pooling = {
        "word_embedding_dimension": encoder.backbone.hidden_size,
        **{f"pooling_mode_{mode}": ours == encoder.pooler for ours, mode in _MODES.items()},
        "include_prompt": True,
    }
    (folder / "1_Pooling").mkdir()
    write_json(folder / "1_Pooling/config.json", pooling)
    for layer, activation in _layers_behind(encoder):
        place = folder / f"{len(types)}_Dense"
        place.mkdir()
        sizes = {"in_features": layer.in_features, "out_features": layer.out_features, "bias": layer.bias is not None}
        write_json(place / "config.json", sizes | {"activation_function": activation})
        weights = {f"linear.{name}": weight.detach().clone() for name, weight in layer.named_parameters()}
        save_file(weights, place / "model.safetensors")
        types.append((place.name, f"{_MODULES}.Dense"))
    prompts = dict(encoder.texts)
    if routed:
        names, shared = [name for name, _ in types], 2 + len([*_layers_behind(documents)])
        router = {
            "types": dict(types),
            "structure": {QUERY: names, "document": names[:shared]},
            "parameters": {"default_route": "document", "allow_empty_key": True},
        }
        write_json(folder / "router_config.json", router)
        types = [("", f"{_MODULES}.Router")]
        # the library asks for no other name once it knows a query
        if (role := role_for("document", encoder.texts)) is not None:
            prompts["document"] = encoder.texts[role]
    if normalize:
        types.append((f"{len(types)}_Normalize", f"{_MODULES}.Normalize"))
    modules = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(types)]
    write_json(folder / MODULES, modules)
    config = {
        "model_type": "SentenceTransformer",
        "__version__": {"sentence_transformers": sentence_transformers.__version__},
        "prompts": prompts,
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    }
    write_json(folder / PROMPTS, config)


def _copy_code(folder: Path) -> None:
    """Copy the module and what it imports, side by side.

    Its attention is registered under a name of its own, so that a model of an older version changes nothing for others
    in the same process.
    """
    paths = [Path(str(module.__file__)) for module in _CODE]
    texts = {path.name: path.read_text(encoding="utf-8") for path in paths}
    mark = hashlib.sha256("".join(texts.values()).encode()).hexdigest()[:12]
    for name, text in texts.items():
        own_name = text.replace(_REGISTERED, f'{_REGISTERED[:-1]}_{mark}"')
        (folder / name).write_text(_OWN.sub(r"from .\1 import", own_name), encoding="utf-8", newline="\n")


def _write_ordinary(encoder: SentenceEncoder, folder: Path) -> None:
    """Write backbone and tokenizer as the library's own ``Transformer`` module reads them."""
    backbone = encoder.transformer
    backbone.model.save_pretrained(folder)
    plain_copy(backbone.tokenizer).save(str(folder / "tokenizer.json"))
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # reads tokenizer.json as it is, in older versions too
        "pad_token": backbone.tokenizer.id_to_token(backbone.pad_id),
        "model_max_length": encoder.max_length,
        "model_input_names": ["input_ids", "attention_mask"],
    }
    write_json(folder / "tokenizer_config.json", tokenizer)
    options = {"model_args": {"add_pooling_layer": False}} if backbone.family.own_pooler else {}
    config = {"max_seq_length": encoder.max_length, "do_lower_case": False} | options
    write_json(folder / LENGTH, config)


def _layers_behind(encoder: SentenceEncoder) -> Iterator[tuple[nn.Linear, str]]:
    """Yield the linear layers behind the pooling, each with the name of its activation."""
    names = {kind: name for name, kind in ACTIVATIONS.items()}
    layers = list(encoder.backbone.dense or ())
    for linear, activation in zip(layers[::2], layers[1::2], strict=True):
        assert isinstance(linear, nn.Linear)  # noqa: S101 - as read_dense makes them
        yield linear, names[type(activation)]
    if isinstance(encoder.mlp, TanhMlp) and encoder.read_out.mlp == "always":
        yield encoder.mlp.dense, names[nn.Tanh]
    if isinstance(encoder.post, LinearMap):
        yield encoder.post.as_layer(), names[nn.Identity]


class _LoadedModel:
    """The loaded model with an encoder's interface."""

    provider = f"{TOOL} {sentence_transformers.__version__}"

    def __init__(self, model: SentenceTransformer) -> None:
        self.model = model

    def encode(self, sentences: Sequence[str], *, normalize: bool, role: str | None = None) -> np.ndarray:
        encode = self.model.encode if role is None else self.model.encode_query
        found: np.ndarray = encode(list(sentences), normalize_embeddings=normalize, show_progress_bar=False)
        return found


@contextmanager
def _loaded_back(folder: Path) -> Iterator[SentenceTransformer]:
    """Yield the model as a user loads it; remove the copy of its code that transformers keeps in its cache."""
    cache = Path(dynamic_module_utils.HF_MODULES_CACHE) / "transformers_modules"
    before = set(cache.iterdir()) if cache.is_dir() else set()
    model = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu", local_files_only=True)
    try:
        yield model
    finally:
        code = {Path(str(sys.modules[type(module).__module__].__file__)) for module in model.modules()}
        holding = [place for path in code for place in path.parents if place.parent == cache]
        for place in set(holding) - before:  # others may keep code there
            shutil.rmtree(place, ignore_errors=True)
