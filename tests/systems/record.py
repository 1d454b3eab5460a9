"""Record the losses of every preset: ``python -m tests.systems.record``, or of some: name them.

Writes the losses of each preset's last step on a tiny backbone to ``tests/assets/losses.json``. ``test_every_preset``
compares against them to rounding, so a change that should not affect numbers must not change the file. ``--digests
FILE`` also writes hashes of weights, losses, scores and bundles; compare two such files, from before and after a change
on one machine, to check that every bit is the same.
"""

import hashlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
import torch

from cse.settings.presets import preset_names
from cse.stages.export import export_stage
from tests.systems.tiny import Watch, make_world, run_training, tiny

RECORDED = Path(__file__).parents[1] / "assets" / "losses.json"
_RESULTS = ("checkpoint/*.safetensors", "bundle/*.onnx", "bundle/tokenizer.json", "plots/**/*.csv")


def losses_of(watch: Watch) -> dict[str, float]:
    """Return the unweighted terms and the loss of the last step; empty without training."""
    return {} if watch.state is None else dict(watch.records[-1].terms)


def digests(folder: Path, watch: Watch) -> dict[str, str]:
    """Return a hash of each result of a run and of the weights after the last step."""
    files = sorted(path for pattern in _RESULTS for path in folder.glob(pattern))
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    if watch.state is not None:
        found["last weights"] = b"".join(sorted(weight.numpy().tobytes() for weight in watch.state.weights.values()))
        found["dev scores"] = repr(watch.state.evaluations).encode()
    return {name: hashlib.sha256(content).hexdigest() for name, content in found.items()}


@click.command(help=__doc__)
@click.argument("presets", nargs=-1, type=click.Choice(preset_names()), metavar="[PRESET]...")
@click.option("--out", type=click.Path(path_type=Path), default=RECORDED, help="File of losses.")
@click.option("--digests", "hashes", type=click.Path(path_type=Path), help="File of hashes.")
def main(presets: Sequence[str], out: Path, hashes: Path | None) -> None:
    torch.set_num_threads(1)
    losses = json.loads(out.read_text(encoding="utf-8")) if presets and out.is_file() else {}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        models, data, start = make_world(root := Path(folder))
        with click.progressbar(presets or preset_names()) as names:
            for name in names:
                settings, watch, place = tiny(name, models, start), Watch(), root / name
                prepared = run_training(settings, data, place, watch)
                model, bundle = place / "checkpoint", place / "bundle"
                export_stage(settings, model=model, prepared=prepared, metrics=(), bundle=bundle)
                losses[name], found[name] = losses_of(watch), digests(place, watch)
    out.parent.mkdir(exist_ok=True)
    losses = {name: losses[name] for name in preset_names() if name in losses}
    out.write_text(json.dumps(losses, indent=1) + "\n", encoding="utf-8")
    if hashes is not None:
        hashes.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
