"""The ASGI application: routes of OpenAI and of Text Embeddings Inference, the page, health and metrics."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import orjson
from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from numpy.typing import NDArray
from starlette.responses import FileResponse
from starlette.staticfiles import StaticFiles

from cse import __version__
from cse.errors import CseError
from cse.runtime.domain import is_name
from cse.runtime.encode import cosine_similarity
from deploy.server.door import Door
from deploy.server.errors import ServiceError
from deploy.server.intake import SizedRoute
from deploy.server.keys import read_keys, unknown_models
from deploy.server.logs import log
from deploy.server.metrics import Metrics
from deploy.server.models import LARGEST_PAGE, PAGE
from deploy.server.options import Options
from deploy.server.refusals import refuse_in_form
from deploy.server.schema import (
    EmbeddingAnswer,
    EmbeddingRequest,
    EmbedRequest,
    ErrorAnswer,
    Info,
    ModelList,
    Prediction,
    PredictRequest,
    SimilarityRequest,
    TeiError,
    TeiRequest,
)
from deploy.server.service import Answer, Inputs, Service

_PAGE = Path(__file__).parent / "page"
_JSON = "application/json"
_POLICY = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
_MANY = 64  # vectors whose answer is written in another thread

_OPENAI_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": text}
    for status, text in {
        400: "The request is not valid, or a token id is not the model's",
        401: "No known API key",
        403: "The key does not open the model, or a page or name of another host asks a server without keys",
        404: "No such model",
        408: "The request did not arrive in time",
        413: "Too many or too long texts",
        424: "The model failed",
        429: "The queue is full; see Retry-After",
        503: "No answer in time",
    }.items()
}
_TEI_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {**facts, "model": TeiError}
    for status, facts in (_OPENAI_ERRORS | {422: {"description": "The request is not valid"}}).items()
}


def create_app(options: Options) -> Door:
    """Load the model and return the application."""
    metrics = Metrics()
    keys = {} if options.api_keys is None else read_keys(options.api_keys)
    service = Service(options, metrics)
    if options.api_keys is not None and (wrong := unknown_models(options.api_keys, keys, service.served.names())):
        log.warning(wrong)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    # its documentation page asks no other host for files; a redirect would name the host that the request names
    app = FastAPIOffline(
        title="cse", version=__version__, summary="Sentence embeddings", lifespan=lifespan, redirect_slashes=False
    )
    app.state.service, app.state.closed = service, bool(keys)
    app.router.route_class = SizedRoute
    refuse_in_form(app)
    closed = [Depends(HTTPBearer(auto_error=False))] if keys else []
    openai: dict[str, Any] = {"responses": _OPENAI_ERRORS, "dependencies": closed}
    tei: dict[str, Any] = {"responses": _TEI_ERRORS, "dependencies": closed}
    app.add_api_route("/v1/embeddings", embeddings, methods=["POST"], response_model=EmbeddingAnswer, **openai)
    app.add_api_route("/v1/models", models, response_model=ModelList, **openai)
    app.add_api_route("/embed", embed, methods=["POST"], response_model=list[list[float]], **tei)
    app.add_api_route("/similarity", similarity, methods=["POST"], response_model=list[float], **tei)
    app.add_api_route(
        "/predict", predict, methods=["POST"], response_model=list[Prediction] | list[list[Prediction]], **tei
    )
    app.add_api_route("/", embed_or_compare, methods=["POST"], response_model=list[list[float]] | list[float], **tei)
    app.add_api_route("/info", info, response_model=Info)
    app.add_api_route("/health", health, responses={503: {"model": ErrorAnswer, "description": "Restart it"}})
    app.add_api_route("/ready", ready, responses={503: {"model": ErrorAnswer, "description": "Not ready"}})
    for path, page in (("/metrics", metrics_page), ("/", front_page), ("/report", report)):
        app.add_api_route(path, page, include_in_schema=False)
    app.mount("/page", StaticFiles(directory=_PAGE))
    return Door(app, options, metrics, keys)


async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
    """Embed texts, or lists of token ids, in OpenAI's form.

    A text beyond the model's length is cut; header `x-truncated` counts them. Token ids are those of the model's own
    tokenizer, without special tokens.
    """
    service: Service = request.app.state.service
    inputs: Inputs = _listed(body.input)
    _check(inputs, service.options, "input")
    answer = await service.embed(
        inputs, body.model, client=request.state.client, normalize=None, dimensions=body.dimensions
    )
    as_text = body.encoding_format == "base64"
    if len(answer.vectors) > _MANY:
        content = await asyncio.get_running_loop().run_in_executor(None, _openai_json, answer, as_text)
    else:
        content = _openai_json(answer, as_text)
    return _json(content, answer, request)


async def models(
    request: Request,
    after: Annotated[str, Query(description="Last id of the page before.")] = "",
    limit: Annotated[int, Query(ge=1, le=LARGEST_PAGE, description="Models in the answer, at most.")] = PAGE,
) -> Response:
    """List the models that the key opens: the bundle, or the domains of the bank, a page at a time."""
    service: Service = request.app.state.service
    if after and not is_name(after.partition(":")[0]):
        raise ServiceError(
            400, f"after: {after[:80]!r} is not the id of a model; send the last_id of a page", param="after"
        )
    page = await service.stored(service.served.cards, after, limit, request.state.client.models, name="/v1/models")
    return Response(orjson.dumps({"object": "list", **page._asdict()}), media_type=_JSON)


async def embed(body: EmbedRequest, request: Request) -> Response:
    """Embed texts in the form of Text Embeddings Inference."""
    service: Service = request.app.state.service
    inputs: Inputs = _listed(body.inputs)
    _check(inputs, service.options, "inputs")
    answer = await service.embed(
        inputs,
        body.model,
        client=request.state.client,
        normalize=body.normalize,
        whole=not body.truncate,
        role=body.prompt_name,
        dimensions=body.dimensions,
    )
    return _json(orjson.dumps(answer.rows, option=orjson.OPT_SERIALIZE_NUMPY), answer, request)


async def similarity(body: SimilarityRequest, request: Request) -> Response:
    """Compare one sentence with others: their cosines."""
    service: Service = request.app.state.service
    inputs = [body.inputs.source_sentence, *body.inputs.sentences]
    _check(inputs, service.options, "inputs.sentences")
    answer = await service.embed(
        inputs,
        body.model,
        client=request.state.client,
        normalize=True,
        whole=not body.parameters.truncate,
        role=body.parameters.prompt_name,
    )
    cosines = cosine_similarity(answer.vectors[:1], answer.vectors[1:])[0]
    return _json(orjson.dumps(cosines, option=orjson.OPT_SERIALIZE_NUMPY), answer, request)


async def predict(body: PredictRequest, request: Request) -> Response:
    """Tell the label of each text in the form of Text Embeddings Inference: all labels, the likeliest first."""
    service: Service = request.app.state.service
    inputs: Inputs = _listed(body.inputs)
    _check(inputs, service.options, "inputs")
    answer = await service.embed(
        inputs, body.model, client=request.state.client, normalize=True, whole=not body.truncate
    )
    classifier = answer.classifier
    if classifier is None:
        raise ServiceError(424, "this model has no classifier: it was exported without labelled texts")
    scores = classifier.logits(answer.vectors) if body.raw_scores else classifier.probabilities(answer.vectors)
    labels = classifier.facts.labels
    if len(scores) > _MANY:
        found = await asyncio.get_running_loop().run_in_executor(None, _predictions, scores, labels)
    else:
        found = _predictions(scores, labels)
    return _json(orjson.dumps(found[0] if isinstance(body.inputs, str) else found), answer, request)


async def embed_or_compare(body: TeiRequest, request: Request) -> Response:
    """Answer as ``/embed``, or as ``/similarity`` where ``inputs`` has a ``source_sentence``."""
    return await (similarity(body, request) if isinstance(body, SimilarityRequest) else embed(body, request))


async def info(request: Request) -> Response:
    """Describe what is in service, and its limits."""
    state = request.app.state
    service: Service = state.service
    served, options = service.served, service.options
    encoder = served.encoder
    facts = {
        "model_id": served.name,
        "model_sha": served.sha256,
        "models": [card["id"] for card in (await service.stored(served.cards, name="/v1/models")).data],
        "dimension": encoder.dimension,
        "max_input_length": encoder.max_length,
        "max_client_batch_size": options.max_texts,
        "max_batch_tokens": service.batch_tokens,
        "normalize": encoder.manifest.normalize,
        "pooler": encoder.pooler,
        "truncates": True,
        "keys_required": state.closed,
        "report": "/report" if options.report is not None else None,
        "provider": encoder.provider,
        "version": served.version,
        "classifier": None if encoder.classifier is None else asdict(encoder.classifier.facts),
    }
    return Response(orjson.dumps(facts), media_type=_JSON)


async def health(request: Request) -> dict[str, str]:
    """Answer 200 while the process and its threads live."""
    if not request.app.state.service.alive:
        raise ServiceError(503, "a thread that computes has ended; restart the server")
    return {"status": "ok"}


async def ready(request: Request) -> dict[str, str]:
    """Answer 200 if a request would be taken, and the bank's folder can be read."""
    service: Service = request.app.state.service
    if not service.ready:
        raise ServiceError(503, "not ready: the queue is full", retry_after=1)
    await service.stored(service.served.names)
    return {"status": "ready"}


async def metrics_page(request: Request) -> Response:
    """Return the metrics for Prometheus."""
    service: Service = request.app.state.service
    # beside the requests: those of 10,000 models take a fifth of a second
    text = await asyncio.to_thread(service.metrics.text)
    return Response(text, media_type="text/plain; version=0.0.4")


async def front_page() -> Response:
    """Return the page."""
    return FileResponse(_PAGE / "index.html", headers=_POLICY)


async def report(request: Request) -> Response:
    """Return the report of the model."""
    path: Path | None = request.app.state.service.options.report
    if path is None or not path.is_file():
        raise ServiceError(404, "this server was started without a report (--report)")
    return FileResponse(path, media_type="text/html")


def _openai_json(answer: Answer, as_text: bool) -> bytes:
    """Return the body of ``/v1/embeddings``; as text, a vector is base64 of little-endian float32."""
    data = []
    for index, vector in enumerate(answer.rows):
        value = base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode() if as_text else vector
        item: dict[str, Any] = {"object": "embedding", "index": index, "embedding": value}
        if answer.domains:
            item["domain"] = answer.domains[index].name
        data.append(item)
    usage = {"prompt_tokens": answer.tokens, "total_tokens": answer.tokens}
    tree = {"object": "list", "data": data, "model": answer.model, "usage": usage}
    return orjson.dumps(tree, option=orjson.OPT_SERIALIZE_NUMPY)


def _predictions(scores: NDArray[np.float32], labels: list[str]) -> list[list[dict[str, Any]]]:
    """Return all labels of each text with their scores ``(n, c)``, the likeliest first."""
    return [
        [{"label": labels[place], "score": float(row[place])} for place in np.argsort(-row, kind="stable")]
        for row in scores
    ]


def _json(content: bytes, answer: Answer, request: Request) -> Response:
    facts = {"texts": len(answer.vectors), "tokens": answer.tokens, "model": answer.model}
    request.state.facts = facts | {"truncated": answer.truncated}
    return Response(
        content,
        media_type=_JSON,
        headers={
            "x-truncated": str(answer.truncated),
            "x-compute-tokens": str(answer.tokens),
            "x-queue-time": str(round(answer.queue_seconds * 1000)),
            "x-inference-time": str(round(answer.compute_seconds * 1000)),
        },
    )


def _listed(given: Any) -> Any:
    """Return one text, or one list of token ids, as a list of one."""
    return [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else given


def _check(inputs: Inputs, options: Options, param: str) -> None:
    """Refuse token ids where none are taken, and too long texts."""
    if not options.token_ids and not isinstance(inputs[0], str):
        raise CseError(
            f"{param}: token ids; most clients send those of OpenAI's tokenizer, which are other words here: send "
            "texts (LangChain: check_embedding_ctx_length=False), or start with --token-ids if they are the model's own"
        )
    longest = max(range(len(inputs)), key=lambda index: len(inputs[index]))
    if len(inputs[longest]) > options.max_characters:
        unit = "characters" if isinstance(inputs[longest], str) else "token ids"
        message = f"{param}[{longest}]: {len(inputs[longest])} {unit}; a text may have {options.max_characters}"
        raise ServiceError(413, message, param=param, code="input_too_long")
