"""The licence of a backbone, as its own model card states it."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import ModelCard
from huggingface_hub import errors as hub_errors

from cse.interchange.hub_errors import is_transport


def licence_of(name: str) -> str | None:
    """Return the licence in the metadata of a backbone's ``README.md``; None where nothing readable states one.

    Args:
        name: folder or hub id of the backbone.
    """
    place = Path(name)
    if not name or place.is_file():
        return None
    if place.is_dir():
        return _stated(place / "README.md") if (place / "README.md").is_file() else None
    return _stated(name)


def _stated(where: Path | str) -> str | None:
    try:
        data = ModelCard.load(where, ignore_metadata_errors=True).data
    except (hub_errors.HfHubHTTPError, hub_errors.HFValidationError, OSError, ValueError):
        return None  # no card, not on the hub, offline, or unreadable
    except Exception as error:
        if not is_transport(error):
            raise
        return None
    stated = data.get("license_name") or data.get("license")
    return str(stated) if stated else None
