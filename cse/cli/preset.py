"""``cse preset``: the hyperparameters of the papers by name."""

from __future__ import annotations

from pathlib import Path

import click

from cse.settings import PARAMS_FILE


@click.group()
def preset() -> None:
    """Systems of the literature by name: list, show, use."""


@preset.command("list", epilog="\b\nExample:\n  cse preset list")
def list_presets() -> None:
    """Print every preset with what it is."""
    from cse.settings.presets import load_preset, preset_names

    names = preset_names()
    width = max(map(len, names))
    for name in names:
        click.echo(f"{name:{width}}  {load_preset(name).description}")


@preset.command(epilog="\b\nExample:\n  cse preset show promcse-eh-bert-base")
@click.argument("name")
def show(name: str) -> None:
    """Print a preset's settings, its source and what differs from the published run."""
    from cse.settings.document import yaml_value
    from cse.settings.presets import load_preset

    chosen = load_preset(name)
    click.echo(f"{chosen.name}: {chosen.description}\nsource: {chosen.source}")
    if chosen.notes:
        click.echo(f"note: {chosen.notes}")
    for key, value in chosen.settings.items():
        click.echo(f"  {key}: {yaml_value(value)}")


@preset.command(epilog="\b\nExample:\n  cse preset use promcse-unsup-bert-base")
@click.argument("name")
@click.option("-p", "--params", type=click.Path(path_type=Path), default=PARAMS_FILE, show_default=True)
def use(name: str, params: Path) -> None:
    """Write a preset into params.yaml; comments and your data settings stay."""
    from cse.settings.presets import apply_preset

    changes = apply_preset(name, params)
    for key, (old, new) in changes.items():
        click.echo(f"  {key}: {old} -> {new}")
    click.echo(f"{params}: now {name}, {len(changes)} keys changed; `dvc repro` trains it")
