"""API keys: the server keeps their SHA-256 only, and the models that each opens."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cse.errors import CseError
from cse.runtime.bank import nearest_name
from deploy.server.errors import ServiceError

_LINE = re.compile(r"([0-9a-f]{64})(?:\s+models=(\S*))?(?:\s+(\S.*))?")


class Key(NamedTuple):
    """A line of the file of keys.

    Attributes:
        models: names of the models that the key opens; None: all.
    """

    models: frozenset[str] | None
    line: int


Keys = Mapping[str, Key]  # by the key's hash


class Client(NamedTuple):
    """Who asks.

    Attributes:
        name: the key's hash, else the address: whose share of the queue a request takes.
        models: those that the key opens; None: all.
    """

    name: str
    models: frozenset[str] | None = None

    def opened(self, model: str | None) -> str | None:
        """Return the id that a request names, or that of the key's only model.

        Raises:
            ServiceError: 403, the key does not open it; 400, one of several must be named.
        """
        if self.models is None:
            return model
        listed = ", ".join(sorted(self.models)[:8])
        if model is None and len(self.models) > 1:
            raise ServiceError(400, f"model: name one of {listed}", param="model", code="model_missing")
        if model is None:
            return next(iter(self.models))
        if self.models.isdisjoint((model, model.rpartition(":")[0])):
            message = f"this API key does not open model {model[:80]!r}; it opens {listed}"
            raise ServiceError(403, message, param="model", code="model_not_allowed")
        return model


def new_key() -> tuple[str, str]:
    """Return a new key, and its hash for the server's file. A key has 256 random bits, so a plain hash is enough."""
    key = f"cse-{secrets.token_urlsafe(32)}"
    return key, digest(key)


def digest(key: str) -> str:
    """Return the SHA-256 of a key in hexadecimal."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def read_keys(path: Path) -> dict[str, Key]:
    """Return the keys in a file of lines ``HASH [models=A,B] [whose]``, by hash; empty lines and those that start with
    # do not count.

    Raises:
        OSError: the file cannot be read.
    """
    found: dict[str, Key] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise CseError(f"{path}:{number}: not the SHA-256 of a key; `cse serve-key` makes a key and its line")
        models = None if match[2] is None else frozenset(match[2].split(","))
        if models is not None and "" in models:
            raise CseError(f"{path}:{number}: {line.split()[1]!r} leaves out a name; write models=NAME,NAME")
        if match[1] in found:
            raise CseError(f"{path}:{number}: the key of line {found[match[1]].line} again; name all its models there")
        found[match[1]] = Key(models, number)
    if not found:
        raise CseError(f"{path}: holds no key; `cse serve-key` makes one")
    return found


def unknown_models(path: Path, keys: Keys, known: Sequence[str]) -> str:
    """Return in one line which names in a file of keys are no model's, ``""`` if all are.

    Args:
        known: names of models, in alphabetical order.
    """
    there = {*known, "auto"}
    wrong = [(key.line, name) for key in keys.values() for name in sorted((key.models or there) - there)]
    if not wrong:
        return ""
    line, name = wrong[0]
    more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    hint = nearest_name(name[:80], known)
    return f"{path}:{line}: no model {name[:80]!r}{hint}{more}; the key opens it once it is there"


def key_of(authorization: str | None, keys: Keys) -> str | None:
    """Return the hash of the key that an ``Authorization`` header carries, or None if it is none of ``keys``.

    The time does not depend on their number. Nobody can choose what the hash of a guess begins with, so a table of
    hashes tells nothing by the time that it takes.
    """
    scheme, _, key = (authorization or "").partition(" ")
    mine = digest(key.strip())
    return mine if scheme.lower() == "bearer" and mine in keys else None
