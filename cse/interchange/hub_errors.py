"""What the hub's library raises, as one line for the user."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import constants
from huggingface_hub import errors as hub_errors
from huggingface_hub import utils as hub_utils

from cse.errors import CseError, OfflineError, one_line

_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


@contextmanager
def hub_explained(repo: str, what: str) -> Iterator[None]:
    """Turn what the hub's library raises into one line; no line holds a token.

    Args:
        repo: ``owner/name``, for messages.
        what: ``read`` or ``write``.

    Raises:
        OfflineError: the hub cannot be reached, or is down.
    """
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
        if not is_transport(error):
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


def is_transport(error: BaseException) -> bool:
    """Return whether the connection failed; the hub's library changed its HTTP client between versions."""
    return any(kind.__name__ == "TransportError" for kind in type(error).__mro__)
