"""A request's body, read and checked at a cost that grows with its bytes alone, and stops at the first mistake."""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import PlainValidator
from pydantic_core import PydanticCustomError

from deploy.server.errors import ServiceError
from deploy.server.options import Options

_LARGE = 2**18  # bytes that are read in another thread
_FIELDS = ("input", "inputs", "texts", "documents")  # that hold the texts of a request
# half of a pair of surrogates, as JSON writes it and in bytes
_HALVES = (
    re.compile(
        rb"\\u[dD](?:[89abAB][\da-fA-F]{2}(?!\\u[dD][c-fC-F][\da-fA-F]{2})"
        rb"|(?<!\\u[dD][89abAB][\da-fA-F]{2}\\u[dD])[c-fC-F][\da-fA-F]{2})"
    ),
    re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]"),
)


def checked(shape: Any, *, alone: bool = True, many: bool = True, ids: bool = True) -> PlainValidator:
    """Return the check of a field that holds texts: one error, ``texts``, which says where the first wrong one stands.

    pydantic's own would write an error for each wrong item and each alternative: gigabytes for a small body.

    Args:
        alone: whether one text is taken.
        many: whether a list of texts is.
        ids: whether token ids are let through, which the route refuses in better words.
    """

    def check(value: Any) -> Any:
        if type(value) is str and alone:
            _good("", value, value != "")
            return value
        _good("", value, type(value) is list and bool(value) and many)
        first = value[0][0] if type(value[0]) is list and value[0] else value[0]
        if not (ids and type(first) is int):
            for index, item in enumerate(value):
                _good(f"[{index}]", item, type(item) is str and item != "")
        return value

    return PlainValidator(check, json_schema_input_type=shape)


def _good(place: str, value: Any, good: bool) -> None:
    if not good:
        raise PydanticCustomError("texts", "is not valid", {"place": place, "empty": value in ("", [])})


class SizedRequest(Request):
    """A request whose JSON is counted before anything looks at its items."""

    async def json(self) -> Any:
        """Return the body.

        Raises:
            json.JSONDecodeError: it is not JSON.
            ServiceError: 413, it has too many texts or token ids.
        """
        if not hasattr(self, "_json"):
            body = await self.body()
            try:
                if len(body) > _LARGE:
                    self._json = await asyncio.to_thread(_read, body)
                else:
                    self._json = orjson.loads(body)
            except orjson.JSONDecodeError:  # half a character, of an emoji that was cut, is all that may be mended
                self._json = await asyncio.to_thread(_read, await asyncio.to_thread(_mended, body))
            _count(self._json, self.app.state.service.options)
        return self._json


class SizedRoute(APIRoute):
    """A route that reads its body so."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(SizedRequest(request.scope, request.receive))

        return handle


def _read(body: bytes) -> Any:
    """Return what a large body holds. orjson lets no other thread run; the collector would take most of the time."""
    gc.disable()
    try:
        return orjson.loads(body)
    finally:
        gc.enable()


def _mended(body: bytes) -> bytes:
    """Return JSON with U+FFFD for each half of a pair of surrogates."""
    body = body.replace(rb"\\", rb"\u005c")  # so that every backslash begins an escape
    for half in _HALVES:
        body = half.sub(lambda _: rb"\ufffd", body)  # a function lets other threads run
    return body


def _count(body: Any, options: Options) -> None:
    """Refuse too many texts."""
    for param in _FIELDS:
        given = body.get(param) if isinstance(body, dict) else None
        if isinstance(given, dict):
            param, given = f"{param}.sentences", given.get("sentences")
        most = options.max_texts - param.endswith("sentences")
        if isinstance(given, list) and len(given) > most and type(given[0]) is not int:
            message = f"{param}: {len(given)} texts; a request may have {most}"
            raise ServiceError(413, message, param=param, code="too_many_inputs")
