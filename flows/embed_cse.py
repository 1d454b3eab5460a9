"""Flow ``embed-cse``: the lines of a file become vectors."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from prefect import flow
from prefect.client.schemas import State
from pydantic import Field

from flows.cse_command import ended, run_command


@flow(name="embed-cse")
def embed_cse(
    text: str,
    out: str,
    model: str = "data/bundle",
    batch_size: Annotated[int, Field(ge=1)] = 64,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    normalize: bool = True,
) -> State[Any]:
    """Embed sentences as `cse encode` does.

    Args:
        text: a UTF-8 file, a sentence a line.
        out: a .npy file, float32 (lines, dimension).
        model: a bundle or a checkpoint.
        batch_size: sentences per forward pass.
        device: where it runs.
        normalize: unit length.
    """
    arguments = ["encode", model, text, "--out", out, "--batch-size", str(batch_size), "--device", device]
    return ended(run_command("embed", [*arguments, "--normalize" if normalize else "--raw"], return_state=True))
