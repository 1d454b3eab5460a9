"""Settings of one domain of the bank: the whole tree with the domain's own data and values."""

from __future__ import annotations

from pathlib import Path

from cse.errors import CseError, nearest
from cse.runtime.domain import POOLERS
from cse.settings.load import Settings, check_settings, set_key

_PARTS = {
    "train_path": "train", "dev_path": "dev", "evaluation_path": "evaluation", "cxc_path": "cxc", "task_path": "task"
}  # fmt: skip


def settings_of_domain(settings: Settings, name: str) -> Settings:
    """Return the settings that train one domain.

    Its rows come from ``train`` in the domain's folder. For dev pairs, evaluation tasks, captions and tasks of your
    own, ``dev``, ``evaluation``, ``cxc`` and ``task`` in that folder take the place of the paths in group ``data``,
    where they exist.
    """
    domains, where = settings.bank.domains, f"bank.domains.{name}"
    if name not in domains:
        raise CseError(f"bank.domains: no domain {name!r}{nearest(name, domains)}; add it to params.yaml")
    folder = Path(domains[name].data)
    if not folder.is_dir():
        raise CseError(f"{where}.data: {folder} is no folder; give one with a folder `train` in it")
    tree = settings.model_dump()
    tree["data"]["source"] = "files"
    for key, part in _PARTS.items():
        if part == "train" or (folder / part).exists():
            tree["data"][key] = str(folder / part)
    for key, value in domains[name].set.items():
        try:
            set_key(tree, key, value)
        except CseError as error:
            raise CseError(f"{where}.set: {error}") from None
    own = check_settings(tree, where=f"{where}.set")
    obstacle = _obstacle(own)
    if obstacle:
        raise CseError(f"{where}: a bank cannot hold {obstacle}")
    return own


def _obstacle(settings: Settings) -> str:
    """Return what a bank cannot hold of a system, or an empty string; ``cse.export.bank`` refuses the same."""
    trained, pooler = settings.train.parameters, settings.pooler
    projected = pooler.mlp == "always" and pooler.projector != "tanh"
    rows = (
        (trained != "prompts", f"train.parameters: {trained}; domains share a frozen backbone"),
        (settings.prompt.kind == "input", "prompt.kind: input, which has no keys and values of its own"),
        (settings.template.text is not None, "template.text: a template changes the tokenizer that domains share"),
        (settings.post.kind == "flow", "post.kind: flow, which is no linear map"),
        (pooler.kind not in (None, *POOLERS), f"pooler.kind: {pooler.kind}; use {', '.join(POOLERS)}"),
        (projected, f"pooler.projector: {pooler.projector}; use tanh"),
    )
    return next((words for when, words in rows if when), "")
