"""Ask a server of embeddings one thing at a time: its models, a vector."""

from __future__ import annotations

import asyncio
import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from cse.errors import CseError

ROUTES = {"openai": "/v1/embeddings", "infinity": "/embeddings"}
MODELS = {"openai": "/v1/models", "infinity": "/models"}


class LoadError(CseError):
    """Why there is nothing to measure."""


class Asking:
    """A plain blocking connection, to ask a few things before the load."""

    def __init__(self, host: str, port: int, key: str = "", timeout: float = 60.0) -> None:
        self.connection = http.client.HTTPConnection(host, port, timeout=timeout)
        self.headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def ask(self, route: str, given: Any = None) -> bytes:
        """Return the body of an answer, or raise ``LoadError`` or ``OSError``; ``given`` is posted as JSON."""
        body = None if given is None else json.dumps(given)
        self.connection.request("GET" if body is None else "POST", route, body, self.headers)
        answer = self.connection.getresponse()
        found = answer.read()
        if answer.status != 200:
            raise LoadError(f"{route}: status {answer.status}: {found[:300].decode(errors='replace')}")
        return found


def split_url(url: str) -> tuple[str, int, str]:
    """Return host, port and path of a URL."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        raise LoadError(f"{url}: give an address such as http://127.0.0.1:8080; only http, without TLS")
    return parts.hostname, parts.port or 80, parts.path.rstrip("/")


def new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop: uvloop's where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
