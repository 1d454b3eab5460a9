"""``cse bank``: one backbone with the prompts of many domains."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cse.cli.options import PATH, check_given, json_writer, settings_from, settings_options
from cse.errors import CseError, nearest
from cse.stages.common import BANK

if TYPE_CHECKING:
    from cse.runtime.domain import Domain

_bank_argument = click.argument("bank", type=PATH)
_EPILOG = """\b
Example:
  cse bank create data/bank sentence-transformers/all-MiniLM-L6-v2
  cse bank add data/bank data/checkpoint --name tickets --data data/prepared
  echo "A cat sleeps." | cse encode data/bank:tickets --out vectors.npy

A bank has one copy of the backbone; a domain adds the size of its prompts. Domains may be added, replaced and removed
while services use the bank. docs/bank.md tells more.
"""


@click.group(epilog=_EPILOG)
def bank() -> None:
    """Keep the prompts of many domains beside one backbone."""


@bank.command("create", epilog="\b\nExample:\n  cse bank create data/bank data/checkpoint")
@_bank_argument
@click.argument("model")
@settings_options
def create_command(bank: Path, model: str, params: Path, overrides: Sequence[str]) -> None:
    """Create a bank without domains.

    BANK is the folder to write. MODEL gives the backbone: a checkpoint, or a backbone's folder or hub id.
    """
    settings = settings_from(params, overrides, optional=True)
    check_given(model)
    from cse.stages.bank import create

    create(model, bank, settings)


@bank.command(
    "add", epilog="\b\nExample:\n  cse bank add data/bank data/checkpoint --name tickets --data data/prepared"
)
@_bank_argument
@click.argument("model")
@click.option("--name", required=True, help="Name of the domain: letters, digits, dots, dashes, underscores.")
@click.option(
    "--data",
    type=PATH,
    help="Its prepared data; lets domain `auto` choose it by text, and of labelled texts makes its classifier.",
)
@click.option("--classifier", type=PATH, metavar="BUNDLE", help="Bundle of the same model, whose classifier it gets.")
@click.option("--replace", is_flag=True, help="Replace a domain of that name.")
@settings_options
def add_command(
    bank: Path,
    model: str,
    name: str,
    data: Path | None,
    classifier: Path | None,
    replace: bool,
    params: Path,
    overrides: Sequence[str],
) -> None:
    """Add a trained checkpoint to a bank as a domain.

    MODEL is a checkpoint with deep prompts on the bank's backbone, or that backbone itself (folder or hub id), which
    becomes a domain without a prompt. A bank created with -s bank.adapters=[all] takes trained biases and LoRA too. The
    domain's embeddings in the bank are compared with torch's first.
    """
    from cse.runtime.bank import Bank

    settings = settings_from(params, overrides, optional=True)
    Bank(bank, whole=False).of_many()
    check_given(model, data)
    from cse.stages.bank import add

    added = add(model, bank, name, settings, data=data, replace=replace, classifier=classifier)
    click.echo(f"{bank}: domain {name}, {_prompt(added)}, {_bytes(bank, added):,} bytes")
    if added.classifier is not None:
        click.echo(f"classifier of {added.classifier.facts}")


@bank.command(
    "update", epilog="\b\nExamples:\n  cse bank update\n  cse bank update tickets invoices --json admitted.json"
)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--bank", type=PATH, default=BANK, show_default=True, help="The bank.")
@settings_options
@click.option("--json", "json_path", type=PATH, help="Also write what became of each here.")
def update_command(
    names: Sequence[str], bank: Path, params: Path, overrides: Sequence[str], json_path: Path | None
) -> None:
    """Put trained domains of params.yaml into the bank.

    Takes the domains NAME, or all in `bank.domains`, that were trained since (`dvc repro domain`). The gate refuses one
    whose vectors differ from torch's, or that scores more than `promotion.dev_tolerance` below the one in the bank on
    its dev pairs (or the bare backbone, if it is new); then the bank stays as it is.
    """
    from cse.evaluation.table import format_rows
    from cse.stages.bank import update

    settings = settings_from(params, overrides, any_view=True)
    known = settings.bank.domains
    for name in names:
        if name not in known:
            raise CseError(f"{name}: not in bank.domains{nearest(name, known)}")
    if not known:
        raise CseError("bank.domains: names no domains; docs/bank.md shows how to add them")
    write_json = json_writer(json_path)
    found, rows = {}, [["domain", "outcome", "dev", "before"]]
    for one in update(settings, names or list(known), bank=bank):
        click.echo(f"domain {one.name}: {one.outcome}{f': {one.reason}' if one.reason else ''}", err=True)
        found[one.name] = vars(one)
        scores = ("-" if score is None else f"{score:.2f}" for score in (one.dev, one.before))
        rows.append([one.name, one.outcome, *scores])
    click.echo(format_rows(rows, "text"), nl=False)
    write_json(found)


@bank.command("remove", epilog="\b\nExample:\n  cse bank remove data/bank tickets")
@_bank_argument
@click.argument("name")
def remove_command(bank: Path, name: str) -> None:
    """Remove domain NAME from a bank."""
    from cse.export.domains import remove_domain

    remove_domain(bank, name)
    click.echo(f"{bank}: removed domain {name}")


@bank.command("list", epilog="\b\nExample:\n  cse bank list data/bank --json | jq .tickets")
@_bank_argument
@click.option("--json", "as_json", is_flag=True, help="Print what is known of every domain, as JSON.")
def list_command(bank: Path, as_json: bool) -> None:
    """List the domains of a bank."""
    from cse.evaluation.dev_facts import dev_of
    from cse.evaluation.table import format_rows
    from cse.runtime.bank import Bank

    facts, rows, refused = {}, [["domain", "prompt", "kB", "dev", "checkpoint"]], []
    for name, one in Bank(bank).of_many().each():
        if isinstance(one, str):
            refused.append(one)
            continue
        facts[name] = vars(one.facts) | {"identity": one.identity(), "bytes": _bytes(bank, one)}
        dev = dev_of(one.facts.metrics)
        score = "-" if dev is None else f"{dev.value:.2f}"
        rows.append([name, _prompt(one), f"{_bytes(bank, one) / 1e3:.0f}", score, one.facts.checkpoint[:12] or "-"])
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    click.echo(format_rows(rows, "text") if len(rows) > 1 else f"{bank}: no domains yet\n", nl=False)
    for reason in refused:
        click.echo(f"refused     {reason}", err=True)


@bank.command("check", epilog="\b\nExample:\n  cse bank check data/bank")
@_bank_argument
def check_command(bank: Path) -> None:
    """Check every file of a bank, and run every domain.

    Exits with 2 if any is damaged or foreign.
    """
    from cse.runtime.domain import Domain
    from cse.runtime.onnx_encoder import OnnxEncoder

    encoder = OnnxEncoder(bank, provider="cpu")
    counts = Counter[bool]()
    for _, one in encoder.bank.of_many().each():
        counts[isinstance(one, Domain)] += 1
        if isinstance(one, Domain):
            encoder.encode(["A cat sleeps."], domain=one)
        else:
            click.echo(f"refused     {one}", err=True)
    click.echo(f"{bank}: {counts[True]} of {counts.total()} domains are whole")
    if counts[False]:
        raise CseError(f"{bank}: {counts[False]} domains are refused; add them again or remove them")


def _prompt(domain: Domain) -> str:
    kinds = [f"{domain.facts.prompt['kind']} x {domain.length}"] if domain.length else []
    if domain.update_up is not None:
        kinds.append(f"lora x {domain.rank}" if domain.rank else "biases")
    kind = " + ".join(kinds) or "none"
    return f"{kind}, for queries alone" if domain.for_queries else kind


def _bytes(bank: Path, domain: Domain) -> int:
    from cse.runtime.bundle import file_of

    return (bank / file_of(domain.name)).stat().st_size
