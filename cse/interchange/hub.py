"""Send a model to the Hugging Face hub, and get one back whole; what the hub's library raises becomes one line."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, errors
from huggingface_hub import utils as hub_utils

from cse.errors import CseError, OfflineError, in_terms_of, one_line
from cse.interchange.model_folder import ModelFolder, check_pulled, manifest_in, read_listing
from cse.model.declared import CARD
from cse.outputs import check_folder, publish_folder

_ATTRIBUTES = ".gitattributes"  # the hub's own file


def push(model: ModelFolder, repo: str, card: str, *, public: bool, message: str) -> str:
    """Send a model and its card in one commit, and remove what an earlier push sent and this one does not.

    A repository that does not exist is created. Returns its address.

    Raises:
        OfflineError: the hub cannot be reached.
    """
    api = HfApi(library_name="cse")
    contents = {**model.contents(), CARD: card.encode()}
    with _explained(repo):
        url = api.create_repo(repo, private=not public, exist_ok=True)
        there = set(api.list_repo_files(repo)) - {_ATTRIBUTES}
        sent: set[str] = set()
        if (listing := manifest_in(there)) is not None:  # of an earlier push, with all that it lists
            sent = {listing, CARD, *read_listing(Path(api.hf_hub_download(repo, listing)), repo)[1]}
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
    with _explained(repo):
        info = api.model_info(repo, revision=revision)
        commit, listing = info.sha, manifest_in({file.rfilename for file in info.siblings or ()})
        if listing is None:
            raise CseError(
                f"{repo}: holds no manifest, so it is no model that `cse push` sent; a backbone needs no pull, give "
                "its id as backbone.name"
            )
        kind, files = read_listing(Path(api.hf_hub_download(repo, listing, revision=commit)), repo)
    check_folder(out, kind)
    with _explained(repo):
        place = Path(api.snapshot_download(repo, revision=commit, allow_patterns=[*files, listing, CARD]))
    with publish_folder(out, kind, changing=(CARD,)) as draft:
        for name in (*files, listing, CARD):
            if (place / name).is_file():
                (draft / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(place / name, draft / name)
        with in_terms_of(repo, str(draft)):
            code = check_pulled(draft)
    return kind, str(commit), code


@contextmanager
def _explained(repo: str) -> Iterator[None]:
    """Turn what the hub's library raises into one line in its words, which hold no token."""
    hide = not sys.stderr.isatty() and not hub_utils.are_progress_bars_disabled()
    if hide:
        hub_utils.disable_progress_bars()
    try:
        yield
    except errors.HFValidationError:
        raise CseError(f"{repo}: not a name on the hub; write OWNER/NAME") from None
    except Exception as error:
        # a failed search of the cache hides why the hub refused
        refusal = next((one for one in (error, error.__cause__) if isinstance(one, errors.HfHubHTTPError)), None)
        if refusal is not None and refusal.response.status_code < 500:
            words = one_line(refusal.server_message or str(refusal))[:200]
            raise CseError(
                f"{repo}: the hub refused ({refusal.response.status_code}): {words}; check the name, --revision and "
                "what your token may do (`hf auth login` or HF_TOKEN)"
            ) from None
        if refusal is None and not is_offline(error):
            raise
        raise OfflineError(f"{repo}: the hub cannot be reached: {one_line(str(error))[:200]}") from None
    finally:
        if hide:
            hub_utils.enable_progress_bars()


def is_offline(error: BaseException) -> bool:
    """Return whether the hub cannot be reached; its library changed the HTTP client between versions."""
    if isinstance(error, errors.OfflineModeIsEnabled | errors.LocalEntryNotFoundError):
        return True
    return any(kind.__name__ == "TransportError" for kind in type(error).__mro__)
