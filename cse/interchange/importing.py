"""Make a checkpoint of another code's files; here also folders of sentence-transformers, which need no library to read.

Such a folder is a fine-tuned transformer with its pooling and perhaps a projector.
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

from cse.choices import ReadOut
from cse.errors import CseError, in_terms_of
from cse.interchange.foreign import Imported, check_beside, fill
from cse.interchange.peft import import_peft
from cse.interchange.released import LAYOUTS, import_released
from cse.model.backbone import Backbone, load_backbone
from cse.model.backbone_files import WEIGHTS, find_backbone
from cse.model.checkpoint import save_checkpoint
from cse.model.declared import LENGTH, MODULES, PROMPTS, declared_by, read_json, read_modules
from cse.model.pooling import read_dense
from cse.model.sentence_encoder import SentenceEncoder
from cse.outputs import Kind, check_folder, publish_folder

SENTENCE_TRANSFORMERS, PEFT = "sentence-transformers", "peft"
KINDS = (*LAYOUTS, SENTENCE_TRANSFORMERS, PEFT)
_SETTING = "backbone.name:"  # of which errors about a folder speak
_ITSELF = "a model of sentence-transformers can be used as it is: set backbone.name to its folder or hub id"


def import_model(
    source: Path,
    kind: str,
    backbone: str,
    out: Path,
    *,
    revision: str = "main",
    pooler: str | None = None,
    template: str | None = None,
) -> Imported:
    """Read a model of another code (``source``: its folder or weight file) and write it as a checkpoint.

    Args:
        backbone: folder or hub id of the language model that it was trained on.
        pooler: how the released scripts read an embedding; None: the code's only one.
        template: words around the sentence; None: the paper's.
    """
    check_folder(out, Kind.CHECKPOINT)
    if template is not None and not (kind in LAYOUTS and LAYOUTS[kind].templates):
        raise CseError(f"--template: {kind} models have none; leave it out")
    if kind == SENTENCE_TRANSFORMERS and pooler is not None:
        raise CseError(f"--pooler {pooler}: a folder of {kind} says how it pools; leave it out")
    with in_terms_of("--backbone:", _SETTING):
        language_model = load_backbone(find_backbone(backbone, revision))
    if kind == SENTENCE_TRANSFORMERS:
        imported = _import_sentence_transformers(source, language_model)
    elif kind == PEFT:
        imported = import_peft(source, language_model, pooler=pooler)
    else:
        imported = import_released(source, kind, language_model, pooler=pooler, template=template)
    with publish_folder(out, Kind.CHECKPOINT) as folder:
        save_checkpoint(imported.encoder, folder, imported.facts)
    return imported


def _import_sentence_transformers(source: Path, backbone: Backbone) -> Imported:
    with in_terms_of(f"{source}:", _SETTING):
        modules = _modules(source)
        declared = declared_by(source)
        start = source / modules["Transformer"]
        trained = load_backbone(find_backbone(str(start.resolve())), "mean", dense=False)  # the pooling is declared
        dense = read_dense(declared.dense, backbone.hidden_size)
    if declared.pooling is None:
        raise CseError(f"{source}: {modules['Pooling']}/config.json names no pooling; fetch it again")
    if dense is not None and not (len(dense) == 2 and isinstance(dense[1], nn.Tanh) and dense[0].bias is not None):
        raise CseError(
            f"{declared.dense[0]}: a Dense that is no linear layer with bias and tanh has no counterpart here"
        )
    check_beside(trained.files.folder, backbone)
    name, path = backbone.files.name, trained.files.folder / WEIGHTS
    values = {key: weight.detach() for key, weight in trained.model.named_parameters()}
    changed = fill(values, dict(backbone.model.named_parameters()), path, name)
    if changed == 0 and dense is None:
        raise CseError(f"{source}: its weights are those of {name}, so there is nothing to import; {_ITSELF}")
    encoder = SentenceEncoder(
        backbone,
        read_out=ReadOut(declared.pooling, mlp="none" if dense is None else "always"),
        trained="full" if changed else "prompts",
        use=declared,
    )
    if dense is not None:
        fill(dense[0].state_dict(), dict(encoder.mlp.dense.named_parameters()), declared.dense[0], name)  # type: ignore[union-attr]
    origin = {"layout": SENTENCE_TRANSFORMERS, "pooler": declared.pooling, "file": path.name, "left_out": {}}
    lines = [
        f"language model: {len(values)} tensors, {changed} of them fine-tuned",
        f"pooling: {declared.pooling}",
        *(["unit length: cse scales vectors to it unless asked not to (--raw)"] if "Normalize" in modules else []),
        f"texts are cut at {encoder.max_length} tokens",
        f"note: {_ITSELF}; a checkpoint is for comparing, exporting and `cse post`",
    ]
    return Imported(encoder, {"imported": origin | {"sha256": trained.files.sha256}}, lines)


def _modules(source: Path) -> dict[str, str]:
    """Return the folder of each module by its class; refuse what would change a text before it is read."""
    if not (source / MODULES).is_file():
        raise CseError(f"{source}: holds no {MODULES}; give a folder that sentence-transformers saved")
    found = dict(read_modules(source / MODULES))
    if not {"Transformer", "Pooling"} <= found.keys():
        raise CseError(f"{source / MODULES}: needs a Transformer and a Pooling; found {', '.join(found)}")
    if (name := read_json(source / PROMPTS).get("default_prompt_name")) is not None:
        raise CseError(
            f"{source / PROMPTS}: puts its prompt {name!r} before every text; here texts are read as they are"
        )
    if read_json(source / LENGTH).get("do_lower_case"):
        raise CseError(f"{source / LENGTH}: do_lower_case lowers texts first; here they are read as they are")
    return found
