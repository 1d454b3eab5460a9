"""Send a model to the Hugging Face hub, and get one back whole."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub import errors as hub_errors

from cse.errors import CseError, in_terms_of
from cse.interchange.hub_errors import hub_explained
from cse.interchange.model_folder import CARD, LISTING, ModelFolder, check_pulled, read_listing
from cse.outputs import check_folder, publish_folder

_ATTRIBUTES = ".gitattributes"  # the hub's own file


def push(model: ModelFolder, repo: str, card: str, *, public: bool, message: str) -> str:
    """Send a model and its card in one commit, and remove what an earlier push sent and this one does not.

    Args:
        model: from ``open_folder``.
        repo: ``owner/name``; created if it does not exist.
        card: text of ``README.md``.

    Returns:
        The address of the repository.

    Raises:
        OfflineError: the hub cannot be reached.
    """
    api = HfApi(library_name="cse")
    contents = model.contents()
    with hub_explained(repo, "write"):
        url = api.create_repo(repo, private=not public, exist_ok=True)
        there = set(api.list_repo_files(repo)) - {_ATTRIBUTES}
        sent = _sent_before(api, repo)
        if sent:  # then the card and the listing are ours too
            there -= {CARD, LISTING}
        stale = there & sent - contents.keys()
        foreign = there - (contents.keys() & sent) - stale
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


def pull(repo: str, out: Path, *, revision: str | None = None) -> tuple[str, str, list[str]]:
    """Get a model that ``push`` sent and check every file of it.

    Args:
        repo: ``owner/name``.
        revision: branch, tag or commit; None: the newest.

    Returns:
        Its kind, the commit it came from, and the names of its Python files.

    Raises:
        OfflineError: the hub cannot be reached.
    """
    api = HfApi(library_name="cse")
    with hub_explained(repo, "read"):
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
    with hub_explained(repo, "read"):
        place = Path(api.snapshot_download(repo, revision=commit, allow_patterns=[*files, CARD]))
    with publish_folder(out, kind) as draft:
        for name in [*files, *(name for name in [CARD] if (place / name).is_file())]:
            if not (place / name).is_file():
                raise CseError(f"{repo}/{name}: missing, though {LISTING} lists it; ask its author to push it again")
            (draft / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(place / name, draft / name)
        with in_terms_of(repo, str(draft)):
            code = check_pulled(draft, kind, files)
    return kind, str(commit), code
