"""Print what the tests of the families measure, as a table: ``python -m tests.model.families_table``."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import numpy as np
import pytest
import torch

from cse.export.bundle import write_bundle
from cse.runtime.onnx_encoder import OnnxEncoder
from tests.model.families import CASES, make_family_folder
from tests.model.test_families import LENGTHS, SENTENCES, load, prompted, real, reference, train_a_little
from tests.parts import embed, new_prompt, sentence_encoder


def rows():
    mask_BL = torch.tensor([[1] * n + [0] * (max(LENGTHS) - n) for n in LENGTHS])
    return torch.randint(5, 60, mask_BL.shape, generator=torch.Generator().manual_seed(1)), mask_BL


def largest_difference(folder) -> float:
    """From the library's model with attention written out in float64, over both kinds of prompt and both positions."""
    found = []
    for kind in ("key_value", "hidden_state"):
        for shift in (0, 3):
            encoder = prompted(load(folder), kind, shift=bool(shift))
            with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
                prefix = encoder.prefix()
                mine = encoder.states(*rows(), prefix)[-1]
                blocks = [(key.detach().numpy(), value.detach().numpy()) for key, value in prefix]
                theirs = reference(folder, patch).states(*rows(), blocks, shift)
            found.append(np.abs(real(mine, rows()[1]) - real(theirs, rows()[1])).max())
    return max(found)


def gradient_error(folder) -> float:
    """Relative, of the derivative along a random direction, against central differences of fourth order."""
    encoder = prompted(load(folder))
    table, generator = encoder.prompt.table, torch.Generator().manual_seed(5)
    along = torch.randn(table.shape, generator=generator, dtype=torch.float64)
    target = torch.randn((len(LENGTHS), encoder.dimension), generator=generator, dtype=torch.float64)

    def loss():
        return (embed(encoder, *rows()) * target).sum()

    loss().backward()
    start, step, found = table.detach().clone(), 1e-3, []
    with torch.no_grad():
        for factor in (1, -1, 2, -2):
            table.copy_(start + factor * step * along)
            found.append(loss().item())
    expected = (4 * (found[0] - found[1]) / (2 * step) - (found[2] - found[3]) / (4 * step)) / 3
    return abs((table.grad * along).sum().item() / expected - 1)


def export_difference(folder, place) -> float:
    backbone = load(folder)
    torch.manual_seed(3)
    prompt = new_prompt("key_value", backbone, length=3, dropout=0.0, init_std=0.7)
    encoder = sentence_encoder(backbone, prompt, position_shift=backbone.family.positions != "rotary", pooler="mean")
    with write_bundle(encoder, place / "bundle", normalize=True, metrics={}):
        pass
    return np.abs(OnnxEncoder(place / "bundle", provider="cpu").encode(SENTENCES) - encoder.encode(SENTENCES)).max()


def steps_trained(folder, place) -> str:
    _, before, after, steps = train_a_little(folder, place / "run")
    return f"{steps}: {before:.3f} to {after:.3f}"


def main() -> None:
    click.echo("| family | reference | gradient | export | steps: loss |\n|---|---|---|---|---|")
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            model = make_family_folder(place / "model", name)
            figures = largest_difference(model), gradient_error(model), export_difference(model, place)
            cells = " | ".join(f"{figure:.1e}" for figure in figures)
            click.echo(f"| {name} | {cells} | {steps_trained(model, place)} |")


if __name__ == "__main__":
    main()
