"""Types of the flow parameters, made from the settings classes.

Prefect validates a form, or ``prefect deployment run``, against their JSON schemas before anything runs; the flow
itself loads its settings before it does anything.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, WithJsonSchema

from cse.errors import CseError, nearest
from cse.settings import Settings, load_settings
from cse.settings.data import DataSettings
from cse.settings.document import json_schema, write_values, yaml_value
from cse.settings.load import PARAMS_FILE, walk_keys
from cse.settings.presets import apply_preset, preset_names
from cse.tune.spaces import parse_dimension, shipped


def _known_space(wanted: str | dict[str, Any]) -> str | dict[str, Any]:
    if not wanted:
        raise CseError("the search space is empty; give values by key, or the name of a space")
    if isinstance(wanted, str) and wanted not in shipped():
        raise CseError(f"{wanted}: no such search space{nearest(wanted, shipped())}")
    for entry in sweep_options(wanted)["tune.over"]:
        parse_dimension(entry)
    return wanted


def sweep_options(wanted: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of group ``tune`` for a space given by name or by values."""
    if isinstance(wanted, str):
        return {"tune.space": wanted, "tune.over": []}
    over = [f"{key}={value if isinstance(value, str) else yaml_value(value)}" for key, value in wanted.items()]
    return {"tune.over": over}


def _schemas() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schemas of values by dotted key, and of a named space or lists of values and ranges by dotted key."""
    settings, space = {}, {}
    interval = {"type": "string", "pattern": r"^\S+[.][.]\S+( log)?$"}
    for key, field in walk_keys():
        schema = json_schema(field)
        if "$defs" in schema:  # groups (bank.domains, data.more); their references would point outside this schema
            schema = {"type": schema["type"]}
        pattern = f"^{key.replace('.', '[.]')}$"
        settings[pattern] = schema
        space[pattern] = {"anyOf": [{"type": "array", "items": schema, "minItems": 1}, interval]}
    form = {"type": "object", "additionalProperties": False}
    grid = {"title": "Grid", **form, "patternProperties": space}
    return {"title": "Settings", **form, "patternProperties": settings}, {
        "title": "Sweep",
        "anyOf": [{"type": "string", "enum": list(shipped())}, grid],
    }


_SETTINGS, _SWEEP = _schemas()
# the run itself names the nearest preset or key, as `cse train` does
Preset = Annotated[str, WithJsonSchema({"type": "string", "enum": preset_names(), "title": "Preset"})]
Overrides = Annotated[dict[str, Any], WithJsonSchema(_SETTINGS)]
Sweep = Annotated[str | dict[str, Any], AfterValidator(_known_space), WithJsonSchema(_SWEEP)]


def changes_of(data: DataSettings | None, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a run sets, by dotted key; from ``data`` only the given keys, and ``overrides`` win."""
    given = {} if data is None else data.model_dump(mode="json", exclude_unset=True)
    return {f"data.{name}": value for name, value in given.items()} | dict(overrides)


def settings_of_run(
    params: Path, preset: str | None, changes: Mapping[str, Any], *, keep_data: bool = False
) -> tuple[Settings, bool]:
    """Return the settings that a run would have, and whether they differ from those of the file."""
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder, PARAMS_FILE.name)
        if params.exists():
            shutil.copyfile(params, draft)
        changed = write_settings(draft, preset, changes, keep_data=keep_data)
        return load_settings(draft), bool(changed)


def write_settings(
    params: Path, preset: str | None, changes: Mapping[str, Any], *, keep_data: bool = False
) -> dict[str, tuple[Any, Any]]:
    """Write a preset, then single values, to a settings file and return what changed: before and after, by dotted key.

    Args:
        changes: values by dotted key, which win over the preset's.
        keep_data: ignore the preset's data, see ``apply_preset``.
    """
    changed = {} if preset is None else dict(apply_preset(preset, params, keep_data=keep_data))
    for key, (before, after) in write_values(params, changes).items():
        changed[key] = (changed.get(key, (before,))[0], after)
    return {key: (before, after) for key, (before, after) in changed.items() if before != after}


def check_train_path(preset: str | None, given: Mapping[str, Any], settings: Settings) -> None:
    """Refuse a training file if the run's preset selects other text: the run would not read it."""
    source = settings.data.source
    if preset is not None and "data.train_path" in given and source != "files":
        raise CseError(
            f"data.train_path: not read, because preset {preset} uses data.source {source}; set data.source: files "
            "too, or keep_data: true"
        )


def as_options(overrides: Mapping[str, Any]) -> list[str]:
    """Return overrides as options of ``cse``."""
    return [part for key, value in overrides.items() for part in ("--set", f"{key}={yaml_value(value)}")]
