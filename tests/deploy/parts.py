"""A server of a bundle or a bank, run in a thread: as much of the service's contract as its page needs."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles

from cse import __version__
from cse.errors import CseError
from cse.runtime.onnx_encoder import OnnxEncoder

PAGE = Path(__file__).parents[2] / "deploy/server/page"
POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"


@pytest.fixture(scope="session")
def server() -> Iterator[Callable[[Path], str]]:
    """Serve a bundle's or bank's folder, once, and return the server's address."""
    running: dict[Path, str] = {}
    with ExitStack() as stack:

        def start(model: Path) -> str:
            if model not in running:
                running[model] = stack.enter_context(serving(make_app(model)))
            return running[model]

        yield start


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """Run an app on a free port."""
    served = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=served.run)
    thread.start()
    while not served.started and thread.is_alive():
        thread.join(0.01)
    try:
        yield f"http://127.0.0.1:{served.servers[0].sockets[0].getsockname()[1]}"
    finally:
        served.should_exit = True
        thread.join()


def make_app(folder: Path) -> FastAPI:
    """The routes that the page uses."""
    encoder, app = OnnxEncoder(folder, provider="cpu", threads=1), FastAPI()

    @app.get("/")
    def page() -> FileResponse:
        return FileResponse(PAGE / "index.html", headers={"content-security-policy": POLICY})

    app.mount("/page", StaticFiles(directory=PAGE))

    @app.get("/info")
    def info() -> dict[str, Any]:
        return {
            "model_id": folder.name,
            "models": [model["id"] for model in describe_models(encoder)],
            "max_input_length": encoder.max_length,
            "max_client_batch_size": 256,
            "dimension": encoder.dimension,
            "version": __version__,
            "report": None,
            "keys_required": False,
        }

    @app.get("/v1/models")
    def list_models() -> dict[str, Any]:
        return {"object": "list", "data": describe_models(encoder)}

    @app.post("/v1/embeddings")
    def embed(body: dict[str, Any]) -> JSONResponse:
        try:
            return answer(encoder, body)
        except CseError as error:
            return JSONResponse({"error": {"message": str(error), "code": "model_not_found"}}, 404)

    return app


def describe_models(encoder: OnnxEncoder) -> list[dict[str, Any]]:
    """One entry for a bundle; for a bank, one per domain, and ``auto`` if a domain has centres."""
    facts = {"object": "model", "owned_by": "cse", "dimension": encoder.dimension}
    if encoder.bank is None:
        return [facts | {"id": encoder.path.name, "max_length": encoder.max_length}]
    domains = encoder.bank.domains().usable
    entries = [facts | {"id": name, "max_length": domain.max_length} for name, domain in domains.items()]
    choosing = any(domain.centres is not None for domain in domains.values())
    return entries + [facts | {"id": "auto", "max_length": encoder.max_length}] * choosing


def answer(encoder: OnnxEncoder, body: dict[str, Any]) -> JSONResponse:
    """Embed, in base64."""
    encoded = encoder.encode_counting(body["input"], domain=None if encoder.bank is None else body["model"])
    data: list[dict[str, Any]] = []
    for index, vector in enumerate(encoded.embeddings):
        text = base64.b64encode(vector.astype("<f4").tobytes()).decode()
        data.append({"object": "embedding", "index": index, "embedding": text})
        if body["model"] == "auto":
            data[-1]["domain"] = encoded.domains[index]
    return JSONResponse(
        {"object": "list", "data": data, "model": body["model"], "usage": {}},
        headers={"x-truncated": str(encoded.truncated)},
    )
