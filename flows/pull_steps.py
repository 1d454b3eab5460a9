"""Steps of a deployment that run on a worker before its flow."""

from __future__ import annotations

from pathlib import Path

from cse.errors import CseError


def keep_remotes(directory: str, folder: str) -> dict[str, str]:
    """Let a fresh clone use the DVC remotes of the folder that was deployed from.

    The default remote is a folder beside the clone. A worker's clone lies somewhere else and is thrown away, and so
    would be what was pushed beside it.

    Args:
        directory: the clone.
        folder: what was deployed from.

    Returns:
        The ``directory``, for further steps.

    Raises:
        CseError: the remote is a folder of another machine.
    """
    from dvc.config import Config  # type: ignore[import-untyped]

    clone = Path(directory).resolve()
    shared = Config(str(clone / ".dvc"), validate=False).load_one("repo")
    local = Path(folder) / ".dvc/config.local"
    here = Config(str(Path(folder) / ".dvc"), validate=False).load_one("local") if local.is_file() else {}
    with Config(str(clone / ".dvc"), validate=False).edit("local") as config:
        for name, remote in shared.get("remote", {}).items():
            url = str(here.get("remote", {}).get(name, {}).get("url", remote.get("url", "")))
            if "://" in url or Path(url).is_absolute():
                continue
            if not Path(folder).is_dir():
                raise CseError(
                    f"DVC remote {name!r} is a folder on the machine that deployed ({url}); give workers one that they "
                    "reach: dvc remote add --default shared s3://BUCKET/PATH, commit, deploy again"
                )
            # Config reads addresses of folders as seen from .dvc
            absolute = (Path(folder) / ".dvc" / url).resolve()
            config.setdefault("remote", {}).setdefault(name, {})["url"] = str(absolute)
    return {"directory": str(clone)}
