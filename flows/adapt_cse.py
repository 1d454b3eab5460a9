"""Flow ``adapt-cse``: a better embedding for a user's own text, and proof, like ``cse adapt``."""

from __future__ import annotations

from typing import Any, Literal

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas import State
from prefect.states import Completed

from flows.cse_command import ended, run_command
from flows.parameters import Overrides, as_options
from flows.repository import find_root


@flow(name="adapt-cse")
def adapt_cse(
    sources: list[str] = [],  # noqa: B006 - shown in Prefect's form, never changed
    task: str | None = None,
    labels: str | None = None,
    pairs: str | None = None,
    budget: str = "2h",
    compare: Literal["full"] | None = None,
    out: str = "data/adapt",
    again: bool = False,
    overrides: Overrides = {},  # noqa: B006
) -> State[Any]:
    """Adapt the backbone like `cse adapt`. Start a cancelled or killed run again to resume it.

    Args:
        sources: documents, plain sentences, pairs or triplets, files or folders; the first is the main one.
        task: your own task, measured and never trained on.
        labels: labelled texts to train on and to measure, the main source.
        pairs: scored or binary pairs, measured and never trained on.
        budget: time to spend: 90s, 45m, 2h.
        compare: `full` also trains the whole model.
        out: folder to work in.
        again: start over if the folder has an adaptation to other text or settings.
        overrides: settings by dotted key.
    """
    arguments = ["adapt", *sources, "--budget", budget, "--out", out]
    for option, value in (("--task", task), ("--labels", labels), ("--pairs", pairs), ("--compare", compare)):
        arguments += [option, value] if value is not None else []
    arguments += ["--again"] if again else []
    state = run_command("adapt", [*arguments, *as_options(overrides)], return_state=True)
    if not state.is_completed():
        return ended(state)
    summary = (find_root() / out / "summary.txt").read_text(encoding="utf-8")
    create_markdown_artifact(f"```\n{summary}```\n", key="adaptation")
    return Completed(message=summary.splitlines()[0])
