"""Answers to requests that are refused, in the form of their route."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from cse.errors import CseError, one_line
from deploy.server.errors import TEI_ROUTES, ServiceError, body_of
from deploy.server.schema import KINDS


def refuse_in_form(app: FastAPI) -> None:
    """Let an application answer every error in OpenAI's form or in that of Text Embeddings Inference."""
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(CseError, _not_tokenized)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for this type
    body = orjson.dumps(body_of(error, request.url.path))
    return Response(body, error.status_code, headers=error.headers, media_type="application/json")


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this type
    tei = request.url.path in TEI_ROUTES
    field = "inputs" if tei else "input"
    value = error.body.get(field) if isinstance(error.body, dict) else None
    found = [one | {"loc": [part for part in one["loc"] if part not in KINDS]} for one in error.errors()]
    others = [one for one in found if one["loc"][1:2] != [field]]
    if others or value is None:
        first = others[0] if others else found[0]
        where = ".".join(str(part) for part in first["loc"][1:] if isinstance(part, str)) or "body"
        refusal = ServiceError(
            422 if tei else 400, f"{where}: {one_line(first['msg'])[:200]}", param=where, kind="Validation"
        )
    else:
        where, empty = _first_wrong(field, value)
        kind = "Empty" if empty else "Validation"
        why = "is empty" if empty else "is not valid: send a text or a list of texts"
        status = 422 if tei and not empty else 400
        refusal = ServiceError(status, f"{where} {why}", param=field, code="empty_input" if empty else None, kind=kind)
    return await _refused(request, refusal)


async def _not_tokenized(request: Request, error: Exception) -> Response:
    status = 422 if request.url.path in TEI_ROUTES else 400
    return await _refused(request, ServiceError(status, one_line(str(error)), param="input", code="invalid_tokens"))


def _first_wrong(field: str, value: Any) -> tuple[str, bool]:
    """Return the place of the first wrong input, and whether it is wrong for being empty."""
    if isinstance(value, dict) and value.keys() & {"source_sentence", "sentences"}:
        source = value.get("source_sentence")
        if not isinstance(source, str) or not source:
            return f"{field}.source_sentence", source == ""
        field, value = f"{field}.sentences", value.get("sentences")
    items = value
    if not isinstance(items, list) or not items:
        return field, items in ("", [])
    kind = type(items[0])
    for index, item in enumerate(items):
        if item in ("", []) or type(item) is not kind or not isinstance(item, str | int | list):
            return f"{field}[{index}]", item in ("", [])
    return field, False
