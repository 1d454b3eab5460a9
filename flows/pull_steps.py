"""Steps of a deployment that run on a worker before its flow."""

from __future__ import annotations

from pathlib import Path

from dvc.config import Config

from cse.errors import CseError


def keep_remotes(directory: str, folder: str) -> dict[str, str]:
    """Let a fresh clone use the DVC remotes of the folder it was deployed from.

    The default remote is a folder next to the clone. A worker's clone is elsewhere and thrown away, along with
    anything pushed next to it.

    Returns:
        The ``directory``, for further steps.
    """
    clone, deployed = Path(directory).resolve(), Path(folder)
    own, theirs = _remotes(clone), _remotes(deployed) if deployed.is_dir() else {}
    with Config(str(clone / ".dvc"), validate=False).edit("local") as config:
        for name, url in own.items():
            place = theirs.get(name, url)
            if "://" in place:
                continue
            if name not in theirs and not Path(place).exists():
                raise CseError(
                    f"DVC remote {name!r} is a folder on the machine you deployed from; add one that workers reach: "
                    "dvc remote add --default shared s3://BUCKET/PATH, commit, deploy again"
                )
            config.setdefault("remote", {}).setdefault(name, {})["url"] = place
    return {"directory": str(clone)}


def _remotes(root: Path) -> dict[str, str]:
    """Return addresses of remotes by name; folders as absolute paths."""
    config = Config(str(root / ".dvc"), validate=False)
    return {name: str(remote["url"]) for name, remote in config.get("remote", {}).items() if "url" in remote}
