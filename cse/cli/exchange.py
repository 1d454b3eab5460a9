"""``cse export``, ``import``, ``push`` and ``pull``: models for services, of other code bases, and on the hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from cse.cli.options import PATH, check_given, data_option, settings_from, settings_options
from cse.errors import CseError
from cse.stages.common import BUNDLE, CHECKPOINT, PREPARED

# names stand here too, so that --help loads no model code; a test compares them with cse.interchange
LAYOUTS = ("promcse", "dcpcse", "simcse", "diffcse", "promptbert", "sentence-transformers", "peft")
_IMPORT = """\b
Examples:
  cse import sup-promcse --as promcse --backbone google-bert/bert-base-uncased --pooler cls --out data/promcse
  cse import pytorch_model.bin --as simcse --backbone google-bert/bert-base-uncased --pooler cls --out data/simcse
  cse import adapter --as peft --backbone google-bert/bert-base-uncased --pooler avg --out data/prefix

\b
--pooler is named as in the released scripts, and no file says it:
  promcse, dcpcse, simcse   cls for supervised models, cls_before_pooler for unsupervised ones
  diffcse                   cls_before_pooler (default)
  promptbert                mask for unsupervised models, mask_delta_org_mlp for the supervised BERT,
                            mask_delta_use_pooler for the supervised RoBERTa
  peft                      cls_before_pooler, avg, avg_top2 or avg_first_last

A tensor without a place here is refused, not dropped. docs/interchange.md tells more.
"""
_PUSH = """\b
Examples:
  cse push me/tickets data/checkpoint --card CARD.md     only write the card, to look at
  cse push me/tickets data/checkpoint
  cse push me/tickets data/bundle --public
  cse pull me/tickets --out data/tickets

Log in first with `hf auth login`, or set HF_TOKEN. A new repository is private unless --public is given. Everything
goes in one commit; a later push replaces what an earlier one sent, and its card. docs/interchange.md tells more.
"""


@click.command(
    epilog="""\b
Formats:
  onnx                   a bundle for services, without torch; every model has this form
  sentence-transformers  a folder for SentenceTransformer(folder, trust_remote_code=True);
                         a model without prompts needs no trust_remote_code
  peft                   the prompt as an adapter for PEFT's prefix tuning
  transformers.js        MODEL, a bundle, as a folder for a browser or node; default: data/bundle

\b
Examples:
  cse export data/checkpoint --out /srv/models/tickets
  cse export --format sentence-transformers --out data/sentence-transformers
  cse export data/checkpoint --format peft --out data/adapter
  cse export data/bundle --format transformers.js --out data/browser
"""
)
@click.argument("model", required=False)
@settings_options
@click.option(
    "--format",
    "form",
    type=click.Choice(["onnx", "sentence-transformers", "peft", "transformers.js"]),
    default="onnx",
    show_default=True,
    help="Form of the model, see below.",
)
@data_option
@click.option("--label-names", type=PATH, help="Table of texts that describe labels (text, label).")
@click.option(
    "--classifier", type=PATH, metavar="BUNDLE", help="sentence-transformers: bundle of MODEL with the one it gets."
)
@click.option("--out", type=PATH, show_default=f"{BUNDLE}, for onnx alone", help="Output folder.")
def export(
    model: str | None,
    params: Path,
    overrides: Sequence[str],
    form: str,
    data: Path,
    label_names: Path | None,
    classifier: Path | None,
    out: Path | None,
) -> None:
    """Write MODEL in the form that a service or another tool loads.

    Its embeddings, as that tool computes them, are compared with torch's first. sentence-transformers and peft need the
    extra `interchange`.
    """
    from cse.artifact import Kind
    from cse.runtime.bank import meaning_of

    settings = settings_from(params, overrides, optional=form != "onnx")
    if form == "transformers.js":
        _export_for_browsers(model or str(BUNDLE), settings.export.tolerance, classifier, out)
        return
    model = model or str(CHECKPOINT)
    needs = form == "onnx" and (data.is_dir() or data != PREPARED or meaning_of(model).kind is Kind.CHECKPOINT)
    check_given(model, data if needs else None)  # a bare backbone needs no data
    if form == "onnx":
        if classifier is not None:
            raise CseError("--classifier: a bundle makes its own of prepared labelled texts; leave it out")
        from cse.stages.export import SCORES, export_stage

        export_stage(
            settings,
            model=model,
            prepared=data if needs else None,
            metrics=SCORES if Path(model) == CHECKPOINT else (),
            bundle=out or BUNDLE,
            label_names=label_names,
        )
        return
    if classifier is not None and form == "peft":
        raise CseError("--classifier: an adapter has none; use --format sentence-transformers")
    if out is None:
        raise CseError(f"--format {form}: name a folder to write with --out")
    if form == "peft":
        from cse.interchange.peft import export_adapter
    else:
        from cse.interchange.sentence_transformers import export_sentence_transformers
    from cse.data.store import PreparedData
    from cse.export.bank import SENTENCES
    from cse.outputs import Kind, check_folder
    from cse.stages.export import classifier_for, open_with_torch, sentences_for_parity

    check_folder(out, Kind.PEFT if form == "peft" else Kind.SENTENCE_TRANSFORMERS)
    encoder, tolerance = open_with_torch(model), settings.export.tolerance
    prepared = PreparedData(data) if data.is_dir() else None
    sentences = SENTENCES if prepared is None else sentences_for_parity(prepared)
    loads = ""
    if form == "peft":
        found = export_adapter(encoder, out, sentences, tolerance=tolerance)
    else:
        told = classifier_for(encoder, Path(model), prepared, label_names, classifier)
        found = export_sentence_transformers(
            encoder, out, sentences, normalize=True, tolerance=tolerance, classifier=told
        )
        if told is not None:
            click.echo(f"classifier of {told.facts}")
        ordinary = encoder.prompt is None and encoder.cls is None
        loads = f"; load it with SentenceTransformer({str(out)!r}{'' if ordinary else ', trust_remote_code=True'})"
    if found is None:
        click.echo(f"{out}: not compared, because peft is not installed (pip install 'cse[interchange]')")
        return
    difference = f"largest difference of {found['provider']} from this encoder {found['largest_difference']:.1e}"
    click.echo(f"{out}: {difference} on {len(sentences)} sentences{loads}")


def _export_for_browsers(bundle: str, tolerance: float, classifier: Path | None, out: Path | None) -> None:
    """Write a bundle as a folder for transformers.js."""
    if classifier is not None:
        raise CseError("--classifier: transformers.js reads none; use --format sentence-transformers")
    if out is None:
        raise CseError("--format transformers.js: name a folder to write with --out")
    from cse.interchange.transformers_js import export_folder
    from cse.runtime.bundle import read_manifest

    difference = export_folder(bundle, out, tolerance=tolerance)
    click.echo(f'{out}: largest difference from {bundle} {difference:.1e}; load it with pipeline("feature-extraction")')
    for role, text in read_manifest(bundle).domain.texts.items():
        click.echo(f"put {text!r} before each text of role {role} yourself")


@click.command("import", epilog=_IMPORT)
@click.argument("file", type=PATH)
@click.option("--as", "kind", type=click.Choice(LAYOUTS), required=True, help="Whose layout the file has.")
@click.option("--backbone", required=True, help="Folder or hub id of the language model it was trained on.")
@click.option("--revision", default="main", show_default=True, help="Revision of the backbone on the hub.")
@click.option("--pooler", help="How the released scripts read an embedding; see below.")
@click.option("--template", help="promptbert: words with {sentence} and {mask}; default: the paper's.")
@click.option("--out", type=PATH, required=True, help="Folder for the checkpoint.")
def import_command(
    file: Path, kind: str, backbone: str, revision: str, pooler: str | None, template: str | None, out: Path
) -> None:
    """Turn a model of another code into a checkpoint.

    FILE is the folder of a released model, or its pytorch_model.bin or model.safetensors; no code of it is run.
    """
    from cse.interchange.importing import import_model

    done = import_model(file, kind, backbone, out, revision=revision, pooler=pooler, template=template)
    for line in done.lines:
        click.echo(line)
    click.echo(f"{out}: checkpoint of {file} ({kind}); try `cse evaluate {out}`")


@click.command(epilog=_PUSH)
@click.argument("repo")
@click.argument("model", type=PATH)
@click.option("--public", is_flag=True, help="Make a new repository public.")
@click.option("--backbone", help="Hub id of the backbone to write into the manifest; default: as recorded.")
@click.option("--message", default="Push a model with cse", show_default=True, help="Message of the commit.")
@click.option("--card", type=PATH, help="Write the card to this file and send nothing.")
def push(repo: str, model: Path, public: bool, backbone: str | None, message: str, card: Path | None) -> None:
    """Send MODEL to the hub with a model card.

    REPO is OWNER/NAME. MODEL is a checkpoint, a bundle, a bank or an exported folder; it is checked first, and only
    files that cse wrote are sent.
    """
    from cse.files import begins_with
    from cse.interchange.card import card_of, find_measures, make_card
    from cse.interchange.model_folder import open_folder, without_machine_paths
    from cse.outputs import check_file, publish_file

    if card is not None:
        check_file(card, begins_with(b"---\n"))
    found = open_folder(model)
    measures = find_measures(found)
    about = card_of(backbone or str(found.backbone.get("name", "")))
    leaving = without_machine_paths(found, backbone)
    text = make_card(leaving, repo, measures, about)
    if card is not None:
        with publish_file(card) as target:
            target.write_text(text, encoding="utf-8")
        click.echo(f"{card}: the card of {model}; nothing was sent")
        return
    from cse.interchange import hub

    if leaving.backbone.get("name") != found.backbone.get("name"):
        click.echo(f"backbone named {leaving.backbone['name']} in the pushed copy; --backbone gives it a hub id")
    url = hub.push(leaving, repo, text, public=public, message=message)
    click.echo(f"{url}: {found.kind}, {len(found.files) + 1} files and a card")


@click.command(epilog="\b\nExample:\n  cse pull me/tickets --out data/tickets")
@click.argument("repo")
@click.option("--out", type=PATH, required=True, help="Folder to write.")
@click.option("--revision", help="Branch, tag or commit; default: the newest.")
def pull(repo: str, out: Path, revision: str | None) -> None:
    """Get a pushed model and check every file of it.

    REPO is OWNER/NAME, sent by `cse push`. A file that differs from what was sent is refused, and OUT stays as it was.
    """
    from cse.interchange import hub

    kind, commit, code = hub.pull(repo, out, revision=revision)
    if code:
        told = "which its library runs if you pass trust_remote_code=True: read it first"
        click.echo(f"note: {repo} holds Python code ({', '.join(code)}), {told}", err=True)
    click.echo(f"{out}: {kind} of {repo} at {commit[:12]}, every file as it was sent")
