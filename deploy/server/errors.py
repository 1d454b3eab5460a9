"""Refusals, in OpenAI's form or in that of Text Embeddings Inference, by route."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from cse.errors import CseError, one_line

TEI_ROUTES = ("/", "/embed", "/similarity", "/predict", "/rerank", "/tokenize")
KINDS = ("embed", "similarity")  # of a body of ``POST /``
_OPENAI_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_TEI_TYPES = {413: "Validation", 422: "Tokenizer", 424: "Backend", 429: "Overloaded", 503: "Unhealthy"}


class ServiceError(HTTPException):
    """An answer other than 200.

    Args:
        code: OpenAI's code, such as ``model_not_found``.
        kind: ``error_type`` of Text Embeddings Inference; None: by status.
        retry_after: seconds after which to ask again.
        reason: what the log alone says.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str | None = None,
        retry_after: int | None = None,
        reason: str = "",
    ) -> None:
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        super().__init__(status, message, headers | ({"WWW-Authenticate": "Bearer"} if status == 401 else {}))
        self.param, self.code, self.kind, self.reason = param, code, kind, reason


def route_of(scope: MutableMapping[str, Any]) -> str:
    """Return a request's path, without the prefix that a proxy adds."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def answer_to(error: HTTPException, route: str) -> Response:
    """Return the answer to a refused request."""
    status, message = error.status_code, str(error.detail)
    param, code, kind = (error.param, error.code, error.kind) if isinstance(error, ServiceError) else (None,) * 3
    body: dict[str, Any]
    if route in TEI_ROUTES:
        body = {"error": message, "error_type": kind or _TEI_TYPES.get(status, "Validation")}
    else:
        by_status = _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        body = {"error": {"message": message, "type": by_status, "param": param, "code": code}}
    return Response(orjson.dumps(body), status, headers=error.headers, media_type="application/json")


def refuse_in_form(app: FastAPI) -> None:
    """Let an application answer every error in the form of its route."""
    for kind in (HTTPException, RequestValidationError, CseError):
        app.add_exception_handler(kind, _refused)


async def _refused(request: Request, error: Exception) -> Response:
    route = route_of(request.scope)
    tei = route in TEI_ROUTES
    if isinstance(error, RequestValidationError):
        error = _invalid(error, tei, request.headers.get("content-type", ""))
    elif isinstance(error, CseError):  # of the tokenizer
        error = ServiceError(422 if tei else 400, one_line(str(error)), param="input", code="invalid_tokens")
    if isinstance(error, ServiceError) and error.reason:
        request.state.facts = {"reason": one_line(error.reason)}
    assert isinstance(error, HTTPException)  # noqa: S101 - no other is registered
    return answer_to(error, route)


def _invalid(error: RequestValidationError, tei: bool, sent: str) -> ServiceError:
    """Return what to say of a body: of the first wrong field that holds no texts, else of the first wrong text."""
    found = error.errors()
    first = next((one for one in found if one["type"] != "texts"), found[0])
    parts = [part for part in first["loc"][1:] if isinstance(part, str) and part not in KINDS]
    where = ".".join(parts) or "body"
    if first["loc"] == ("body",) and "json" not in sent.lower():  # it was not read
        message = f"body: Content-Type is {sent[:80] or 'missing'}; send JSON with Content-Type: application/json"
        return ServiceError(422 if tei else 400, message, kind="Validation")
    if first["type"] != "texts":
        message = f"{where}: {one_line(first['msg'])[:200]}"
        return ServiceError(422 if tei else 400, message, param=where, kind="Validation")
    where += first["ctx"]["place"]
    if first["ctx"]["empty"]:
        return ServiceError(400, f"{where} is empty", param=parts[0], code="empty_input", kind="Empty")
    message = f"{where} is not valid: send a text or a list of texts"
    return ServiceError(422 if tei else 400, message, param=parts[0], kind="Validation")
