"""Read rows from a data set on the Hugging Face hub, from files of its repository."""

from __future__ import annotations

import fnmatch
import glob
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from cse.data.read import find_data_file
from cse.data.shape import Row, read_rows
from cse.errors import CseError, OfflineError

_SECONDS = 5.0


def hub_rows(
    hub_id: str,
    view: str,
    *,
    file: str,
    revision: str = "main",
    columns: Sequence[str] | None = None,
    encoding: str = "utf-8",
    score_range: tuple[float, float] = (0.0, 5.0),
    tell: Callable[[str], object] = print,
) -> Iterator[Row]:
    """Stream the rows of a data set on the hub, from the cache if already downloaded.

    Args:
        hub_id: e.g. ``princeton-nlp/datasets-for-simcse``.
        view: see ``read_rows``.
        file: a file of the repository, e.g. ``wiki1m_for_simcse.txt``, or a pattern of several.
        revision: branch, tag or commit.
        columns: see ``read_rows``.
        score_range: see ``read_rows``.
        tell: see ``read_rows``.

    Raises:
        OfflineError: the hub is unreachable and the data set is not cached.
    """
    paths = [find_data_file(path, "data.hub_file") for path in hub_files(hub_id, file, revision)]
    return chain.from_iterable(read_rows(path, view, columns, encoding, score_range, tell) for path in paths)


def hub_files(hub_id: str, pattern: str, revision: str = "main") -> list[Path]:
    """Return the local paths of the files that a pattern names, ``data/train-*.parquet``, in order of their names.

    Raises:
        OfflineError: as ``hub_file``; of a pattern always, since the cache may have some of its files.
    """
    if glob.escape(pattern) == pattern:
        return [hub_file(hub_id, pattern, revision)]
    from huggingface_hub import list_repo_files

    try:
        with _cache_only_when_unreachable():
            names = sorted(fnmatch.filter(list_repo_files(hub_id, repo_type="dataset", revision=revision), pattern))
    except Exception as error:
        raise _explain(error, f"{hub_id}/{pattern}", revision) from None
    if not names:
        raise CseError(f"{hub_id}: no file {pattern} at revision {revision!r}; check data.hub_file")
    return [hub_file(hub_id, name, revision) for name in names]


def hub_file(hub_id: str, file: str, revision: str = "main") -> Path:
    """Return the local path of a file of a data set's repository, downloading it if needed.

    Raises:
        OfflineError: the hub is unreachable and the file is not cached.
    """
    from huggingface_hub import hf_hub_download

    try:
        with _cache_only_when_unreachable():
            return Path(hf_hub_download(hub_id, file, repo_type="dataset", revision=revision))
    except Exception as error:
        raise _explain(error, f"{hub_id}/{file}", revision) from None


@contextmanager
def _cache_only_when_unreachable() -> Iterator[None]:
    """Ping the hub once; if it does not answer, use only the cache instead of retrying for half a minute."""
    import httpx
    from huggingface_hub import constants

    was = constants.HF_HUB_OFFLINE
    if not was:
        try:
            httpx.head(constants.ENDPOINT, timeout=_SECONDS)
        except httpx.TransportError:
            constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = was


def _explain(error: Exception, what: str, revision: str) -> CseError:
    """Turn an exception from the hub's libraries into a one-line error; re-raise disk errors."""
    from huggingface_hub import errors as hub

    reached = (hub.RepositoryNotFoundError, hub.RevisionNotFoundError, hub.RemoteEntryNotFoundError)
    if isinstance(error, hub.GatedRepoError):
        return CseError(f"{what}: this data set is gated; request access on the hub and log in with `hf auth login`")
    if isinstance(error, reached):
        return CseError(
            f"{what}: not on the hub at revision {revision!r}; check data.hub_id, data.hub_file and data.hub_revision"
        )
    if _offline(error):
        return OfflineError(
            f"{what}: the hub cannot be reached and the cache does not have it; download it elsewhere and use "
            "data.source: files, or set HF_HOME to a cache that has it"
        )
    if isinstance(error, OSError) and error.errno is not None:
        raise error
    return CseError(f"{what}: {type(error).__name__}: {(str(error) or 'no message').splitlines()[0]}")


def _offline(error: BaseException) -> bool:
    """Return whether an error or one of its causes means that the network is unreachable."""
    import httpx
    from huggingface_hub import errors as hub

    unreachable = (
        hub.LocalEntryNotFoundError,
        hub.OfflineModeIsEnabled,
        httpx.TransportError,
        ConnectionError,
        TimeoutError,
    )
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, unreachable):
            return True
        if isinstance(cause, hub.HfHubHTTPError) and cause.response is not None and cause.response.status_code >= 500:
            return True
        cause = cause.__cause__ or cause.__context__
    return False
