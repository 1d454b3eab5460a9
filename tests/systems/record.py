"""Write down what every preset computes: ``python -m tests.systems.record``.

The losses and dev scores of a few steps of each preset on a tiny backbone go to ``tests/assets/losses.json``, which
``test_every_preset`` compares to rounding: a change that should change no number must leave the file as it is. With
``--digests FILE`` the hashes of checkpoints, metrics and bundles are written beside it; two of those files, of before
and after a change on one machine, say whether it left every bit as it was.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path

import click
import torch

from cse.settings.presets import preset_names
from cse.stages.export import export_stage
from tests.systems.tiny import Watch, make_data, make_models, make_warm_start, run_training, tiny

RECORDED = Path(__file__).parents[1] / "assets" / "losses.json"
# what names a place or the time and is no result
_FILES = ("checkpoint/*.safetensors", "checkpoint/words/*", "bundle/*.onnx", "bundle/tokenizer.json", "plots/**/*.csv")


def recorded_losses(watch: Watch) -> dict[str, float | list[float]]:
    """Return the unweighted terms of the last step, and every dev score."""
    if watch.state is None:
        return {}
    return {**watch.records[-1].terms, "dev_spearman": [score for _, score in watch.state.evaluations]}


def digests(folder: Path) -> dict[str, str]:
    """Return a hash of each result of a run, by its path."""
    files = sorted(path for pattern in _FILES for path in folder.glob(pattern) if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@click.command(help=__doc__)
@click.option("--out", type=click.Path(path_type=Path), default=RECORDED, help="File of losses.")
@click.option("--digests", "hashes", type=click.Path(path_type=Path), help="File of hashes.")
def main(out: Path, hashes: Path | None) -> None:
    torch.set_num_threads(1)
    losses, found = {}, {}
    # a fixed place: paths of models stand in settings, which checkpoints hold
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        models, data = make_models(root / "models"), make_data(root / "data")
        start = make_warm_start(models, data, root / "warm")
        with click.progressbar(preset_names()) as names:
            for name in names:
                settings, watch, place = tiny(name, models, start), Watch(), root / name
                prepared = run_training(settings, data, place, watch)
                export_stage(
                    settings, model=place / "checkpoint", prepared=prepared, metrics=(), bundle=place / "bundle"
                )
                losses[name] = recorded_losses(watch)
                found[name] = digests(place)
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(losses, indent=1) + "\n", encoding="utf-8")
    if hashes is not None:
        hashes.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
