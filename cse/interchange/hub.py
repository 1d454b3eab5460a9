"""Send a model to the Hugging Face hub, and get one back whole; what the hub's library raises becomes one line."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, errors
from huggingface_hub import utils as hub_utils

from cse.errors import CseError, OfflineError, in_terms_of, one_line
from cse.interchange.model_folder import LISTING, ModelFolder, check_pulled, read_listing
from cse.model.declared import CARD
from cse.outputs import check_folder, publish_folder
from cse.runtime.bundle import DOMAINS

_ATTRIBUTES = ".gitattributes"  # the hub's own file


def push(model: ModelFolder, repo: str, card: str, *, public: bool, message: str) -> str:
    """Send a model and its card in one commit, and remove what an earlier push sent and this one does not.

    A repository that does not exist is created. Returns its address.

    Raises:
        OfflineError: the hub cannot be reached.
    """
    api = HfApi(library_name="cse")
    contents = {**model.contents(), CARD: card.encode()}
    with _explained(repo, "write"):
        url = api.create_repo(repo, private=not public, exist_ok=True)
        there = set(api.list_repo_files(repo)) - {_ATTRIBUTES}
        sent: set[str] = set()
        if LISTING in there:  # then it, the card and all that it lists are of an earlier push
            sent = {LISTING, CARD, *read_listing(Path(api.hf_hub_download(repo, LISTING)), repo)[1]}
        if foreign := there - sent:
            shown = ", ".join(sorted(foreign)[:3])
            raise CseError(f"{repo}: holds files that `cse push` did not send ({shown}); choose another name")
        operations: list[Any] = [CommitOperationDelete(path_in_repo=name) for name in sorted(there - contents.keys())]
        operations += [CommitOperationAdd(path_in_repo=name, path_or_fileobj=data) for name, data in contents.items()]
        api.create_commit(repo, operations, commit_message=message)
    return str(url)


def pull(repo: str, out: Path, *, revision: str | None = None) -> tuple[str, str, list[str]]:
    """Get a model that ``push`` sent and check every file of it.

    Returns:
        Its kind, the commit it came from, and the names of its Python files.

    Raises:
        OfflineError: the hub cannot be reached.
    """
    api = HfApi(library_name="cse")
    with _explained(repo, "read"):
        commit = api.model_info(repo, revision=revision).sha
        try:
            listing = api.hf_hub_download(repo, LISTING, revision=commit)
        except errors.EntryNotFoundError:
            raise CseError(
                f"{repo}: holds no {LISTING}, so it is no model that `cse push` sent; a backbone needs no pull, give "
                "its id as backbone.name"
            ) from None
    kind, files = read_listing(Path(listing), repo)
    check_folder(out, kind)
    with _explained(repo, "read"):
        place = Path(api.snapshot_download(repo, revision=commit, allow_patterns=[*files, CARD]))
    with publish_folder(out, kind, changing=(CARD, f"{DOMAINS}/*")) as draft:
        for name in (*files, CARD):
            if (place / name).is_file():
                (draft / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(place / name, draft / name)
        with in_terms_of(repo, str(draft)):
            code = check_pulled(draft, kind, files)
    return kind, str(commit), code


@contextmanager
def _explained(repo: str, what: str) -> Iterator[None]:
    """Turn what the hub's library raises into one line, which holds no token; ``what`` is ``read`` or ``write``."""
    hide = not sys.stderr.isatty() and not hub_utils.are_progress_bars_disabled()
    if hide:
        hub_utils.disable_progress_bars()
    try:
        yield
    except Exception as error:
        line = _line_of(error, repo, what)
        if line is None:
            raise
        raise line from None
    finally:
        if hide:
            hub_utils.enable_progress_bars()


def _line_of(error: Exception, repo: str, what: str) -> CseError | None:
    """Return what to tell of an error, if it is of the hub or of the way there: in the hub's words."""
    if isinstance(error, errors.HFValidationError):
        return CseError(f"{repo}: not a name on the hub; write OWNER/NAME")
    # a failed search of the cache hides why the hub refused
    refusal = next((one for one in (error, error.__cause__) if isinstance(one, errors.HfHubHTTPError)), None)
    if refusal is None:
        if not is_offline(error):
            return None
        if isinstance(error, errors.OfflineModeIsEnabled) or constants.HF_HUB_OFFLINE:
            return OfflineError(f"{repo}: HF_HUB_OFFLINE is set; unset it to reach the hub")
        return OfflineError(f"{repo}: the hub ({constants.ENDPOINT}) cannot be reached; connect and try again")
    status = refusal.response.status_code
    if status >= 500:
        return OfflineError(f"{repo}: the hub answers {status}; try again later")
    do = "check the name and --revision, or log in with `hf auth login` or HF_TOKEN"
    if status == 403:
        do = f"use a token that may {what} there, or another owner"
    return CseError(
        f"{repo}: the hub refused ({status}): {one_line(refusal.server_message or str(refusal))[:200]}; {do}"
    )


def is_offline(error: BaseException) -> bool:
    """Return whether the hub cannot be reached; its library changed the HTTP client between versions."""
    if isinstance(error, errors.OfflineModeIsEnabled | errors.LocalEntryNotFoundError):
        return True
    return any(kind.__name__ == "TransportError" for kind in type(error).__mro__)
