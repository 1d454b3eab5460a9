"""Import a folder of sentence-transformers: a fine-tuned transformer with its pooling and perhaps a projector."""

from __future__ import annotations

from pathlib import Path

import torch

from cse.choices import ReadOut
from cse.errors import CseError, in_terms_of
from cse.interchange.assemble import Imported, build, copy_into
from cse.interchange.same_model import check_beside, check_shapes
from cse.interchange.weight_files import MODEL_FILES, find_file, read_tensors
from cse.model.backbone import Backbone, load_backbone
from cse.model.backbone_files import find_backbone
from cse.model.declared import declared_by, read_json, read_modules

MODULES = "modules.json"
DENSE = "Dense"
_SETTING = "backbone.name:"  # of which errors about a folder speak
_TANH = "torch.nn.modules.activation.Tanh"
_ITSELF = "a model of sentence-transformers can be used as it is: set backbone.name to its folder or hub id"


def import_sentence_transformers(source: Path, backbone: Backbone) -> Imported:
    """Read a folder of sentence-transformers as a fine-tuned backbone."""
    modules = _modules(source)
    _check_habits(source)
    trained = _open(source / modules["Transformer"])
    dense = _read_dense(source / modules[DENSE]) if DENSE in modules else None
    with in_terms_of(f"{source}:", _SETTING):
        declared = declared_by(source)
    if declared.pooling is None:
        raise CseError(f"{source}: {modules['Pooling']}/config.json names no pooling; fetch it again")
    read_out = ReadOut(declared.pooling, mlp="none" if dense is None else "always")
    check_beside(trained.files.folder, backbone)
    wanted, values = (dict(model.model.named_parameters()) for model in (backbone, trained))
    path = trained.files.folder / "model.safetensors"
    check_shapes(values, wanted, path, backbone.files.name)
    changed = sum(not torch.equal(wanted[name], value) for name, value in values.items())
    if changed == 0 and dense is None:
        raise CseError(
            f"{source}: its weights are those of {backbone.files.name}, so there is nothing to import; {_ITSELF}"
        )
    copy_into(wanted, {name: value.detach() for name, value in values.items()})
    encoder = build(backbone, read_out, frozen=changed == 0, use=declared)
    if dense is not None:
        parts = {f"linear.{name}": weight for name, weight in encoder.mlp.dense.named_parameters()}  # type: ignore[union-attr]
        check_shapes(dense, parts, source / modules[DENSE], backbone.files.name)
        copy_into(parts, dense)
    origin = {
        "layout": "sentence-transformers",
        "pooler": read_out.kind,
        "file": path.name,
        "sha256": trained.files.sha256,
    }
    lines = [f"language model: {len(values)} tensors, {changed} of them fine-tuned", f"pooling: {read_out.kind}"]
    lines += _told(source, modules, encoder.max_length)
    return Imported(encoder, {"imported": origin | {"left_out": {}}}, lines)


def _told(source: Path, modules: dict[str, str], max_length: int) -> list[str]:
    lines = []
    if "Normalize" in modules:
        lines.append("unit length: cse scales vectors to it unless asked not to (--raw)")
    lines.append(f"texts are cut at {max_length} tokens")
    return [*lines, f"note: {_ITSELF}; a checkpoint is for comparing, exporting and `cse post`"]


def _modules(source: Path) -> dict[str, str]:
    """Return the folder of each module by its class."""
    path = source / MODULES
    if not path.is_file():
        raise CseError(f"{source}: holds no {MODULES}; give a folder that sentence-transformers saved")
    with in_terms_of(f"{source}:", _SETTING):
        listed = read_modules(path)
    found = dict(listed)
    if len(found) != len(listed):
        raise CseError(f"{path}: has a module twice, which has no counterpart here")
    if not {"Transformer", "Pooling"} <= found.keys():
        raise CseError(f"{path}: needs a Transformer and a Pooling; found {', '.join(found) or 'nothing'}")
    return found


def _read_dense(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights of a linear layer with tanh on the pooled vector."""
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    plain = config.get("bias") is True and config.get("module_input_name") in (None, "sentence_embedding")
    if not plain or config.get("activation_function") != _TANH:
        raise CseError(f"{folder}: a Dense that is no linear layer with bias and tanh has no counterpart here")
    return read_tensors(find_file(folder, MODEL_FILES))


def _check_habits(source: Path) -> None:
    """Refuse what would change a text before it is read."""
    path = source / "config_sentence_transformers.json"
    if path.is_file() and (name := read_json(path).get("default_prompt_name")) is not None:
        raise CseError(f"{path}: puts its prompt {name!r} before every text; texts are read as they are here")
    path = source / "sentence_bert_config.json"
    if path.is_file() and read_json(path).get("do_lower_case"):
        raise CseError(f"{path}: do_lower_case lowers texts before its tokenizer does; texts are read as they are here")


def _open(folder: Path) -> Backbone:
    with in_terms_of(f"{folder}:", _SETTING):
        files = find_backbone(str(folder.resolve()))
        return load_backbone(files, "mean", dense=False)  # the pooling is read below
