"""Errors of the service, in OpenAI's form or in that of Text Embeddings Inference, by route."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException

TEI_ROUTES = ("/", "/embed", "/similarity", "/predict")
_OPENAI_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_TEI_TYPES = {413: "Validation", 422: "Tokenizer", 424: "Backend", 429: "Overloaded", 503: "Unhealthy"}


class ServiceError(HTTPException):
    """An answer other than 200.

    Args:
        code: OpenAI's code, such as ``model_not_found``.
        kind: ``error_type`` of Text Embeddings Inference; None: by status.
        retry_after: seconds after which to ask again.
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
    ) -> None:
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        super().__init__(status, message, headers | ({"WWW-Authenticate": "Bearer"} if status == 401 else {}))
        self.param, self.code, self.kind = param, code, kind


def body_of(error: HTTPException, path: str) -> dict[str, Any]:
    """Return the JSON body of an error on a route."""
    status, message = error.status_code, str(error.detail)
    if path in TEI_ROUTES:
        return {"error": message, "error_type": getattr(error, "kind", None) or _TEI_TYPES.get(status, "Validation")}
    kind = _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    param, code = getattr(error, "param", None), getattr(error, "code", None)
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
