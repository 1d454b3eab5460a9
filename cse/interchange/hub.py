"""Send a model to the Hugging Face hub, and get one back whole."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants
from huggingface_hub import errors as hub_errors
from huggingface_hub import utils as hub_utils

from cse.errors import CseError, OfflineError, one_line
from cse.interchange.model_folder import CARD, LISTING, ModelFolder, check_pulled, read_listing
from cse.outputs import check_folder, publish_folder

_OWN = {CARD, LISTING, ".gitattributes"}  # files of a repository that are no part of its model
_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


def push(model: ModelFolder, repo: str, card: str, *, public: bool, message: str) -> str:
    """Send a model and its card in one commit, and remove what an earlier push sent and this one does not.

    Args:
        model: from ``open_folder``.
        repo: ``owner/name``; created if it does not exist.
        card: text of ``README.md``.
        public: whether a new repository is for everyone.
        message: of the commit.

    Returns:
        The address of the repository.

    Raises:
        OfflineError: the hub cannot be reached.
        CseError: it refused the token or the name, or the repository holds something else.
    """
    api = HfApi(library_name="cse")
    contents = model.contents()
    with _explained(repo, "write"):
        url = api.create_repo(repo, private=not public, exist_ok=True)
        there = set(api.list_repo_files(repo)) - _OWN
        stale = there & _sent_before(api, repo) - contents.keys()
        foreign = there - contents.keys() - stale
        if foreign:
            shown = ", ".join(sorted(foreign)[:3])
            raise CseError(f"{repo}: holds files that `cse push` did not send ({shown}); choose another name")
        operations: list[Any] = [CommitOperationDelete(path_in_repo=name) for name in sorted(stale)]
        everything = {**contents, CARD: card.encode()}
        operations += [CommitOperationAdd(path_in_repo=name, path_or_fileobj=data) for name, data in everything.items()]
        api.create_commit(repo, operations, commit_message=message)
    return str(url)


def _sent_before(api: HfApi, repo: str) -> set[str]:
    """Return the files of the last push, none if there was none."""
    if not api.file_exists(repo, LISTING):
        return set()
    _, files = read_listing(Path(api.hf_hub_download(repo, LISTING)), repo)
    return set(files)


def pull(repo: str, out: Path, *, revision: str | None = None) -> tuple[str, str]:
    """Get a model that ``push`` sent and check every file of it.

    Args:
        repo: ``owner/name``.
        out: folder to write.
        revision: branch, tag or commit; None: the newest.

    Returns:
        Its kind and the commit it came from.

    Raises:
        OfflineError: the hub cannot be reached.
        CseError: no such repository or revision, not a pushed model, a damaged one, or ``out`` may not be replaced.
    """
    api = HfApi(library_name="cse")
    with _explained(repo, "read"):
        commit = api.model_info(repo, revision=revision).sha
        try:
            listing = api.hf_hub_download(repo, LISTING, revision=commit)
        except hub_errors.EntryNotFoundError:
            raise CseError(
                f"{repo}: holds no {LISTING}, so it is no model that `cse push` sent; a backbone needs no pull, give "
                "its id as backbone.name"
            ) from None
    kind, files = read_listing(Path(listing), repo)
    check_folder(out, kind)
    with _explained(repo, "read"):
        place = Path(api.snapshot_download(repo, revision=commit, allow_patterns=[*files, CARD]))
    with publish_folder(out, kind) as draft:
        for name in [*files, *(name for name in [CARD] if (place / name).is_file())]:
            if not (place / name).is_file():
                raise CseError(f"{repo}/{name}: missing, though {LISTING} lists it; ask its author to push it again")
            (draft / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(place / name, draft / name)
        _check(draft, files, repo)
    return kind, str(commit)


def _check(draft: Path, files: Mapping[str, Any], repo: str) -> None:
    try:
        check_pulled(draft, files)
    except CseError as error:
        raise CseError(str(error).replace(str(draft), repo)) from None


@contextmanager
def _explained(repo: str, what: str) -> Iterator[None]:
    """Turn what the hub's library raises into one line; no line holds a token."""
    try:
        with _bars_on_a_terminal():
            yield
    except hub_errors.HFValidationError:
        raise CseError(f"{repo}: not a name on the hub; write OWNER/NAME") from None
    except (hub_errors.RepositoryNotFoundError, hub_errors.GatedRepoError) as error:
        gated = isinstance(error, hub_errors.GatedRepoError)
        why = "is gated for this account" if gated else "does not exist, or this account may not see it"
        raise CseError(f"{repo}: {why}; check the name, or {_LOG_IN}") from None
    except hub_errors.RevisionNotFoundError:
        raise CseError(f"{repo}: has no such revision; leave --revision out for the newest") from None
    except hub_errors.HfHubHTTPError as error:
        raise _refused(repo, what, error) from None
    except (hub_errors.OfflineModeIsEnabled, hub_errors.LocalEntryNotFoundError) as error:
        raise _unreachable(repo, error) from None
    except Exception as error:
        if not _is_transport(error):
            raise
        raise _unreachable(repo, error) from None


@contextmanager
def _bars_on_a_terminal() -> Iterator[None]:
    """Show the library's progress bars on a terminal only."""
    if sys.stderr.isatty() or hub_utils.are_progress_bars_disabled():
        yield
        return
    hub_utils.disable_progress_bars()
    try:
        yield
    finally:
        hub_utils.enable_progress_bars()


def _refused(repo: str, what: str, error: hub_errors.HfHubHTTPError) -> CseError:
    status = error.response.status_code
    if status == 401:
        return CseError(f"{repo}: the hub refused the token (401); {_LOG_IN}")
    if status == 403:
        return CseError(f"{repo}: this token may not {what} there (403); use one with that right, or another owner")
    if status >= 500:
        return OfflineError(f"{repo}: the hub answers {status}; try again later")
    said = error.server_message or (str(error).splitlines() or [""])[0]
    return CseError(f"{repo}: the hub refused ({status}): {one_line(said)[:200]}")


def _unreachable(repo: str, error: BaseException) -> CseError:
    """Return the line for a hub that cannot be reached, or the refusal behind a failed search of the cache."""
    cause: BaseException | None = error.__cause__
    if isinstance(cause, hub_errors.HfHubHTTPError) and cause.response.status_code < 500:
        return _refused(repo, "read", cause)
    if isinstance(error, hub_errors.OfflineModeIsEnabled) or constants.HF_HUB_OFFLINE:
        return OfflineError(f"{repo}: HF_HUB_OFFLINE is set; unset it to reach the hub")
    return OfflineError(f"{repo}: the hub ({constants.ENDPOINT}) cannot be reached; connect and try again")


def _is_transport(error: BaseException) -> bool:
    """Return whether the connection failed; the hub's library changed its HTTP client between versions."""
    return any(kind.__name__ == "TransportError" for kind in type(error).__mro__)
