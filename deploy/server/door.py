"""What every request passes: limits on its body and time, keys, metrics and the log."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from deploy.server.errors import TEI_ROUTES, ServiceError, answer_to, route_of
from deploy.server.keys import Client, Keys, key_of
from deploy.server.logs import log
from deploy.server.metrics import Metrics
from deploy.server.options import Options

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Trace = Callable[[Headers, dict[str, Any]], None]

# begin routes that need a key where keys are set, and alone have bodies
_CLOSED = ("/v1/", "/v2/", *(route for route in TEI_ROUTES if route != "/"))
_REASONS = {400: "invalid", 401: "key", 404: "unknown", 405: "unknown", 408: "slow", 413: "too large", 422: "invalid"}
_GONE = 499  # the client went away; nobody reads this status
_ID = re.compile(r"[\w.-]{1,128}")


class Door:
    """ASGI middleware around the application.

    Args:
        keys: the API keys; none: the service is open.
        trace: is told of each request to a route that embeds, with what the log would say of it; None: nobody is.
    """

    def __init__(self, app: App, options: Options, metrics: Metrics, keys: Keys, trace: Trace | None) -> None:
        self._app, self._options, self.metrics, self._keys, self._trace = app, options, metrics, keys, trace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request = given if _ID.fullmatch(given) else uuid.uuid4().hex
        status = 0
        unread = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        path = route_of(scope)

        async def reply(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request.encode())]
                if unread:  # a client may send without end; nobody reads on
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        try:
            if not self._keys:
                _check_origin(scope, headers)
            closed = _is_closed(scope)
            key = self._admit(closed, headers)
            # a proxy's address is read from X-Forwarded-For
            name, models = ((scope.get("client") or ("",))[0], None) if key is None else (key, self._keys[key].models)
            scope.setdefault("state", {}).update(client=Client(name, models), id=request)
            body = b""
            if unread and closed:
                body = await self._body(receive)
                unread = False
            await self._answer(scope, body, receive, reply)
        except _GoneError:
            status = status or _GONE
        except HTTPException as error:
            if not status:  # else the answer has begun, and what is left is to hang up
                await answer_to(error, path)(scope, receive, reply)
        except Exception:
            log.exception("unforeseen error", extra={"facts": {"request": request, "path": path[:100]}})
            if not status:
                unforeseen = HTTPException(500, "unforeseen error; the log says where")
                await answer_to(unforeseen, path)(scope, receive, reply)
        self._note(scope, headers, status, time.perf_counter() - start, request)

    def _admit(self, closed: bool, headers: Headers) -> str | None:
        """Refuse a request without a key, or one that says that it is too large, before reading it.

        Returns the key's hash, if the route needs a key.
        """
        closed = closed and bool(self._keys)
        key = key_of(headers.get("authorization"), self._keys) if closed else None
        if closed and key is None:
            raise ServiceError(401, "send a known API key: Authorization: Bearer KEY", code="invalid_api_key")
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._options.max_body:
            raise self._too_large()
        return key

    async def _body(self, receive: Receive) -> bytes:
        """Return the request's body."""
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._options.receive_timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _GoneError
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self._options.max_body:
                        raise self._too_large()
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            wait = self._options.receive_timeout
            raise ServiceError(408, f"the request did not arrive within {wait:g} s", code="slow_request") from None

    async def _answer(self, scope: Scope, body: bytes, receive: Receive, reply: Send) -> None:
        """Run the application on a request that has arrived whole; give up when its client goes."""
        task = asyncio.current_task()
        read = gone = False

        async def whole() -> Message:
            nonlocal read
            if read:
                await asyncio.get_running_loop().create_future()  # only `_left` waits for the client to go
            read = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def left() -> None:
            nonlocal gone
            while (await receive())["type"] != "http.disconnect":
                pass
            gone = True
            if task is not None:
                task.cancel()

        watcher = asyncio.create_task(left()) if body else None
        try:
            await self._app(scope, whole, reply)
        except asyncio.CancelledError:
            if not gone:
                raise
            if task is not None:
                task.uncancel()
            raise _GoneError from None
        finally:
            if watcher is not None:
                watcher.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watcher

    def _too_large(self) -> ServiceError:
        return ServiceError(413, f"the request is larger than {self._options.max_body} bytes; send it in parts")

    def _note(self, scope: Scope, headers: Headers, status: int, seconds: float, request: str) -> None:
        route = getattr(scope.get("route"), "path", "other")
        self.metrics.requests.labels(route, status).inc()
        self.metrics.request_seconds.labels(route).observe(seconds)
        if status >= 400:
            self.metrics.refused.labels(_REASONS.get(status, str(status))).inc()
        facts = {"request": request, "route": route, "status": status, "ms": round(seconds * 1000, 3)}
        facts |= scope.get("state", {}).get("facts", {})
        if self._options.log_requests or status >= 500:
            log.info("request", extra={"facts": facts})
        if self._trace is not None and _is_closed(scope):
            self._trace(headers, facts)


def _is_closed(scope: Scope) -> bool:
    """Return whether a request needs a key where keys are set."""
    path = route_of(scope)
    return path.startswith(_CLOSED) or (path == "/" and scope["method"] == "POST")


def _check_origin(scope: Scope, headers: Headers) -> None:
    """Refuse what a page of elsewhere lets a browser ask a server without keys on this machine."""
    if not is_loopback((scope.get("server") or ("",))[0]):
        return
    host = headers.get("host", "")
    if host and not is_loopback(urlsplit(f"//{host}").hostname or ""):
        raise ServiceError(403, "Host: this server without API keys answers as localhost only", code="wrong_host")
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        raise ServiceError(403, "Origin: this server without API keys answers its own page only", code="wrong_origin")


def is_loopback(name: str) -> bool:
    """Return whether a name or an address is this machine's own."""
    try:
        return name == "localhost" or ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


class _GoneError(Exception):
    """The client went away."""
