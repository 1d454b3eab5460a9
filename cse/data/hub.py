"""Read rows from a data set on the Hugging Face hub, from files of its repository."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from cse.data.read import find_data_file
from cse.data.shape import Row, read_rows
from cse.errors import CseError, OfflineError, error_line

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
        file: a file of the repository, e.g. ``wiki1m_for_simcse.txt``; or a pattern, ``data/train-*.parquet``, whose
            files are read as one.
        revision: branch, tag or commit.
        columns: see ``read_rows``.
        score_range: see ``read_rows``.
        tell: see ``read_rows``.

    Raises:
        OfflineError: the hub is unreachable and the data set is not cached; of a pattern always, since the cache may
            have some of its files.
    """
    if "*" not in file and "?" not in file:
        path = find_data_file(hub_file(hub_id, file, revision), "data.hub_file")
        return read_rows(path, view, columns, encoding, score_range, tell)
    paths = _split(hub_id, file, revision)
    return _joined(paths, f"{hub_id}/{file}", lambda path: read_rows(path, view, columns, encoding, score_range, tell))


def _split(hub_id: str, pattern: str, revision: str) -> list[Path]:
    """Return the parquet files that a pattern names, ``data/train-*.parquet``, in order of their names."""
    from huggingface_hub import list_repo_files

    if not pattern.endswith(".parquet"):
        raise CseError(f"data.hub_file: {pattern} names several files, which must be .parquet; name one file")
    try:
        with _cache_only_when_unreachable():
            there = list_repo_files(hub_id, repo_type="dataset", revision=revision)
    except Exception as error:
        if _offline(error):
            raise OfflineError(
                f"{hub_id}/{pattern}: the hub cannot be reached, and the cache may have only some of these files; name "
                "one file, or download them elsewhere and use data.source: files"
            ) from None
        raise _explain(error, f"{hub_id}/{pattern}", revision) from None
    depth = pattern.count("/")
    names = sorted(name for name in there if PurePosixPath(name).match(pattern) and name.count("/") == depth)
    if not names:
        raise CseError(f"{hub_id}: no file {pattern} at revision {revision!r}; check data.hub_file")
    return [hub_file(hub_id, name, revision) for name in names]


def _joined(paths: Sequence[Path], shown: str, read: Callable[[Path], Iterator[Row]]) -> Iterator[Row]:
    """Read files as one: its rows have numbers of their own, and all values of a column decide what it is."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory(prefix="cse-hub-") as folder:
        whole = Path(folder) / re.sub(r"[^\w.-]+", "_", shown)
        try:
            with pq.ParquetWriter(whole, pq.read_schema(paths[0])) as writer:
                for path in paths:
                    for batch in pq.ParquetFile(path).iter_batches():
                        writer.write_batch(batch)
        except (pa.ArrowInvalid, ValueError) as error:
            raise CseError(f"{shown}: the files are not parts of one table ({error_line(error)[:200]})") from None
        yield from read(whole)


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
