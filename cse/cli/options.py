"""Shared options, and settings from the command line."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from cse.choices import Provider
from cse.errors import CseError
from cse.settings import PARAMS_FILE, Settings, load_settings
from cse.settings.load import check_settings, parse_yaml, set_key
from cse.stages.common import CHECKPOINT, PREPARED

PATH = click.Path(path_type=Path)
_Command = TypeVar("_Command", bound=Callable[..., Any])
params_option = click.option("-p", "--params", type=PATH, default=PARAMS_FILE, show_default=True, help="Settings file.")
set_option = click.option(
    "-s", "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a setting; may be repeated."
)
data_option = click.option("--data", type=PATH, default=PREPARED, show_default=True, help="Prepared data.")
device_option = click.option(
    "--device", type=click.Choice(get_args(Provider)), default="auto", show_default=True, help="Where it runs."
)


def _encoding(context: click.Context, parameter: click.Parameter, value: str) -> str:
    try:
        return codecs.lookup(value).name
    except LookupError:
        raise click.BadParameter(f"{value!r} is not an encoding known to Python") from None


encoding_option = click.option(
    "--encoding", default="utf-8", show_default=True, callback=_encoding, help="Of text files: cp1252, utf-16, ..."
)


def settings_options(command: _Command) -> _Command:
    """Give a command ``--params`` and ``--set``."""
    return params_option(set_option(command))


def json_writer(path: Path | None) -> Callable[[Any], None]:
    """Refuse a file that no command wrote, before the work; return what writes a tree to it, or does nothing."""
    from cse.files import is_json_with, write_rounded_json
    from cse.outputs import check_file, publish_file

    if path is None:
        return lambda tree: None
    check_file(path, is_json_with())

    def write(tree: Any) -> None:
        with publish_file(path) as target:
            write_rounded_json(target, tree)

    return write


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the values of ``KEY=VALUE`` arguments by dotted key; values are parsed as YAML."""
    values = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise CseError(f"--set {override}: write it as KEY=VALUE, for instance train.epochs=2")
        try:
            values[key.strip()] = parse_yaml(value, f"--set {key}")
        except CseError:
            shown, short = f"--set {override}"[:100], value[:100]
            raise CseError(f"{shown}: {short!r} is not a YAML value; quote it if it is text") from None
    return values


def check_given(model: str | None = None, prepared: Path | None = None, *, bundles: bool = False) -> None:
    """Refuse a model or prepared data that is not there, before torch is loaded, which takes seconds.

    Args:
        bundles: whether the model may be a bundle or a bank's domain.
    """
    from cse.data.store import PreparedData
    from cse.model.declared import check_checkpoint, check_model, check_no_bundle

    if model is not None and not bundles:
        check_no_bundle(model)
    if model is not None and Path(model) == CHECKPOINT:
        check_checkpoint(CHECKPOINT)
    elif model is not None:
        check_model(model)
    if prepared is not None:
        PreparedData(prepared)


def settings_from(
    params: Path,
    overrides: Sequence[str],
    *,
    optional: bool = False,
    any_view: bool = False,
    prepared: Path | None = None,
) -> Settings:
    """Read the settings file and apply the overrides.

    Args:
        optional: use the defaults if the default file does not exist.
        prepared: folder of the rows to train on; if it exists, its view replaces ``data.view``.
    """
    values = parse_overrides(overrides)
    if prepared is not None and prepared.is_dir():
        return _settings_for_rows(params, values, prepared)
    if not optional or params.exists() or params != PARAMS_FILE:
        return load_settings(params, values, any_view=any_view)
    tree: dict[str, Any] = {}
    for key, value in values.items():
        set_key(tree, key, value)
    return check_settings(tree, where="--set")


def _settings_for_rows(params: Path, values: Mapping[str, Any], prepared: Path) -> Settings:
    from cse.data.store import PreparedData

    settings = load_settings(params, values, any_view=True)
    view, wanted = PreparedData(prepared).report.get("view"), settings.mine.view(settings.data.rows)
    if "data.view" in values and view != wanted:
        raise CseError(f"data.view: {prepared} holds {view}, not {wanted}; run `cse prepare` for {wanted}")
    tree = settings.model_dump()
    if view != wanted:
        tree["data"] |= {"view": view, "columns": None}
    return check_settings(tree, where=str(params) if view == wanted else f"{prepared} holds {view}")
