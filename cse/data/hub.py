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
from cse.settings.data import DataSettings

_SECONDS = 5.0


def hub_rows(settings: DataSettings, tell: Callable[[str], object]) -> Iterator[Row]:
    """Stream the rows of ``hub_file``, or of the parquet files that a pattern names, read as one.

    They come from the cache if they were downloaded.

    Args:
        settings: the group ``data``.
        tell: see ``read_rows``.

    Raises:
        OfflineError: the hub is unreachable and the file is not cached; of a pattern always, since the cache may have
            some of its files.
    """
    lowest, highest = settings.score_range
    file, columns = settings.hub_file, settings.columns

    def read(path: Path) -> Iterator[Row]:
        return read_rows(path, settings.view, columns, settings.encoding, (lowest, highest), tell)

    if "*" not in file and "?" not in file:
        return read(find_data_file(_download(settings, file), "data.hub_file"))
    paths = [_download(settings, name) for name in _names(settings)]
    return _joined(paths, f"{settings.hub_id}/{file}", read)


def _names(settings: DataSettings) -> list[str]:
    """Return the parquet files that a pattern names, ``data/train-*.parquet``, in order of their names."""
    from huggingface_hub import list_repo_files

    hub_id, pattern, revision = settings.hub_id, settings.hub_file, settings.hub_revision
    if not pattern.endswith(".parquet"):
        raise CseError(f"data.hub_file: {pattern} names several files, which must be .parquet; name one file")
    remedy = (
        ", and the cache may have only some of these files; name one file, or download them elsewhere and use "
        "data.source: files"
    )
    with _asking(f"{hub_id}/{pattern}", revision, remedy):
        there = list_repo_files(hub_id, repo_type="dataset", revision=revision)
    depth = pattern.count("/")
    names = sorted(name for name in there if PurePosixPath(name).match(pattern) and name.count("/") == depth)
    if not names:
        raise CseError(f"{hub_id}: no file {pattern} at revision {revision!r}; check data.hub_file")
    return names


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


def _download(settings: DataSettings, file: str) -> Path:
    from huggingface_hub import hf_hub_download

    remedy = (
        " and the cache does not have it; download it elsewhere and use data.source: files, or set HF_HOME to a cache "
        "that has it"
    )
    with _asking(f"{settings.hub_id}/{file}", settings.hub_revision, remedy):
        return Path(hf_hub_download(settings.hub_id, file, repo_type="dataset", revision=settings.hub_revision))


@contextmanager
def _asking(what: str, revision: str, remedy: str) -> Iterator[None]:
    """Ask the hub, or the cache alone if it does not answer a ping; its errors become one line, those of a disk pass.

    The hub's own library would try again for half a minute.
    """
    import httpx
    from huggingface_hub import constants
    from huggingface_hub import errors as hub

    was = constants.HF_HUB_OFFLINE
    try:
        if not was:
            try:
                httpx.head(constants.ENDPOINT, timeout=_SECONDS)
            except httpx.TransportError:
                constants.HF_HUB_OFFLINE = True
        yield
    except hub.GatedRepoError:
        advice = "request access on the hub and log in with `hf auth login`"
        raise CseError(f"{what}: this data set is gated; {advice}") from None
    except (hub.RepositoryNotFoundError, hub.RevisionNotFoundError, hub.RemoteEntryNotFoundError):
        keys = "data.hub_id, data.hub_file and data.hub_revision"
        raise CseError(f"{what}: not on the hub at revision {revision!r}; check {keys}") from None
    except Exception as error:
        if _offline(error):
            raise OfflineError(f"{what}: the hub cannot be reached{remedy}") from None
        if isinstance(error, OSError) and error.errno is not None:
            raise
        told = (str(error) or "no message").splitlines()[0]
        raise CseError(f"{what}: {type(error).__name__}: {told}") from None
    finally:
        constants.HF_HUB_OFFLINE = was


def _offline(error: BaseException | None) -> bool:
    """Return whether an error or one of its causes means that the network is unreachable."""
    import httpx
    from huggingface_hub import errors as hub

    unreachable = (hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled, httpx.TransportError)
    while error is not None:
        if isinstance(error, (*unreachable, ConnectionError, TimeoutError)):
            return True
        if isinstance(error, hub.HfHubHTTPError) and error.response is not None and error.response.status_code >= 500:
            return True
        error = error.__cause__ or error.__context__
    return False
