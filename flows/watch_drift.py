"""Flow ``watch-drift``: tell Prefect when the texts that a service is asked for have moved, so that it can retrain.

The event is ``cse.drifted``; ``train-cse/local`` has a trigger on it in ``prefect.yaml``. This flow's own schedule is
off by default.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import httpx
from prefect import flow, get_run_logger
from prefect.client.schemas import State
from prefect.events import emit_event
from prefect.states import Completed, Failed
from pydantic import Field

from cse.errors import CseError, error_line
from flows.repository import find_root

EVENT = "cse.drifted"
_SEEN = "cse-drift-seen.json"
_SECONDS = 30.0  # for an answer


@flow(name="watch-drift")
def watch_drift(
    url: str = "http://127.0.0.1:8080",
    threshold: Annotated[float, Field(gt=0)] = 0.2,
    texts: Annotated[int, Field(ge=2)] = 1000,
) -> State[Any]:
    """Ask a server how far its vectors have moved, and emit an event the first time a model version has drifted.

    Args:
        url: address of a server that `cse serve --drift` started.
        threshold: distance above which vectors have drifted, see docs/drift.md.
        texts: number of texts that a distance must stand on.
    """
    try:
        root = find_root()
        models = ask(url)
    except CseError as error:
        return Failed(message=str(error))
    drifted = [one for one in models if one["texts"] >= texts and (one["distance"] or 0.0) > threshold]
    if not drifted:
        return Completed(message=f"no drift: {_listed(models)}")
    seen = root / ".dvc/tmp" / _SEEN
    versions = _read(seen)
    new = [one for one in drifted if versions.get(one["model"]) != one["version"]]
    for one in new:
        emit_event(
            event=EVENT,
            resource={"prefect.resource.id": f"cse.model.{one['model']}", "cse.model-version": one["version"]},
            payload={"url": url, "threshold": threshold, **one},
        )
        versions[one["model"]] = one["version"]
        get_run_logger().info("drifted: %s", _listed([one]))
    seen.parent.mkdir(parents=True, exist_ok=True)
    seen.write_text(json.dumps(versions, indent=2), encoding="utf-8")
    return Completed(message=f"drifted: {_listed(new)}" if new else f"reported before: {_listed(drifted)}")


def ask(url: str) -> list[dict[str, Any]]:
    """Return what a server says of each of its models.

    Raises:
        CseError: it does not answer, was started without ``--drift``, or is no such server.
    """
    route = f"{url.rstrip('/')}/drift"
    try:
        answer = httpx.get(route, timeout=_SECONDS)
        found = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise CseError(f"{route}: no answer of an embedding server ({error_line(error)})") from None
    if answer.status_code != 200:
        refusal = found.get("error") if isinstance(found, dict) else None
        said = refusal.get("message") if isinstance(refusal, dict) else answer.status_code
        raise CseError(f"{route}: {said}; start the server with `cse serve --drift`")
    models = found.get("models") if isinstance(found, dict) else None
    needed = {"model", "version", "distance", "texts"}
    if not isinstance(models, list) or not all(isinstance(one, dict) and needed <= one.keys() for one in models):
        raise CseError(f"{route}: not the answer of an embedding server of this project")
    return models


def _read(seen: Path) -> dict[str, str]:
    """Return the version of each model that was last reported."""
    try:
        found = json.loads(seen.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _listed(models: list[dict[str, Any]]) -> str:
    parts = []
    for one in models:
        distance = "no distance" if one["distance"] is None else f"distance {one['distance']:.3f}"
        parts.append(f"{one['model']} {one['version']}, {distance} over {one['texts']} texts")
    return "; ".join(parts) or "the server has no model"
