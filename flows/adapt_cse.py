"""Flow ``adapt-cse``: a better embedding for a user's own text, and proof, like ``cse adapt``."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas import State
from prefect.states import Completed

from cse.cli.adapt import adapt
from flows.cse_command import arguments_of, ended, run_command, takes
from flows.repository import find_root


@flow(name="adapt-cse")
@takes(adapt)
def adapt_cse(
    sources: list[str] = [],  # noqa: B006 - shown in Prefect's form, never changed
    out: str = "data/adapt",
    **given: Any,
) -> State[Any]:
    """Adapt the backbone like `cse adapt`. Start a cancelled or killed run again to resume it.

    Args:
        sources: documents, plain sentences, pairs or triplets, files or folders; the first is the main one.
    """
    state = run_command("adapt", arguments_of(adapt, given | {"sources": sources, "out": out}), return_state=True)
    if not state.is_completed():
        return ended(state)
    summary = (find_root() / out / "summary.txt").read_text(encoding="utf-8")
    create_markdown_artifact(f"```\n{summary}```\n", key="adaptation")
    return Completed(message=summary.splitlines()[0])
