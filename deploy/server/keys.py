"""API keys: the server keeps their SHA-256 only."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from pathlib import Path

from cse.errors import CseError

_LINE = re.compile(r"([0-9a-f]{64})(?:\s+(\S.*))?")


def new_key() -> tuple[str, str]:
    """Return a new key, and its hash for the server's file. A key has 256 random bits, so a plain hash is enough."""
    key = f"cse-{secrets.token_urlsafe(32)}"
    return key, digest(key)


def digest(key: str) -> str:
    """Return the SHA-256 of a key in hexadecimal."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def read_keys(path: Path) -> list[str]:
    """Return the hashes in a file of lines ``HASH [whose]``; empty lines and those that start with # do not count.

    Raises:
        CseError: a line is not a hash, or there is none: a server that was to be closed would be shut for all.
        OSError: the file cannot be read.
    """
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise CseError(f"{path}:{number}: not the SHA-256 of a key; `cse serve-key` makes a key and its line")
        found.append(match[1])
    if not found:
        raise CseError(f"{path}: holds no key; `cse serve-key` makes one")
    return found


def key_of(authorization: str | None, hashes: list[str]) -> str | None:
    """Return the hash of the key that an ``Authorization`` header carries, or None if it is none of ``hashes``.

    Takes the same time for every key.
    """
    scheme, _, key = (authorization or "").partition(" ")
    mine = digest(key.strip())
    matches = [hmac.compare_digest(mine, known) for known in hashes]
    return mine if scheme.lower() == "bearer" and any(matches) else None
