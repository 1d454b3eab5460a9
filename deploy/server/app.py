"""The ASGI application: routes of OpenAI, Text Embeddings Inference and Cohere, the page, health and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import orjson
from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from prometheus_client import generate_latest
from starlette.responses import FileResponse
from starlette.staticfiles import StaticFiles

from cse import __version__
from cse.errors import CseError
from cse.runtime.domain import is_name
from cse.runtime.encode import cosine_similarity
from cse.runtime.tokens import is_blank
from deploy.server.door import Door, Trace
from deploy.server.errors import TEI_ROUTES, ServiceError, refuse_in_form
from deploy.server.forms import openai, predictions, ranked, spelled, usage
from deploy.server.intake import SizedRoute
from deploy.server.keys import read_keys, unknown_models
from deploy.server.logs import log
from deploy.server.metrics import Metrics
from deploy.server.models import LARGEST_PAGE, PAGE
from deploy.server.options import Options
from deploy.server.schema import (
    EmbeddingAnswer,
    EmbeddingRequest,
    EmbedRequest,
    ErrorAnswer,
    Info,
    ModelList,
    Prediction,
    PredictRequest,
    Rank,
    RerankAnswer,
    RerankRequest,
    SimilarityRequest,
    TeiError,
    TeiRequest,
    Token,
    TokenizeRequest,
)
from deploy.server.service import Answer, Service, Wanted

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
    trace = _start_tracing() if options.otel else None
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
    for method, path, answer, shape in (
        ("POST", "/v1/embeddings", embeddings, EmbeddingAnswer),
        ("GET", "/v1/models", models, ModelList),
        ("POST", "/embed", embed, list[list[float]]),
        ("POST", "/similarity", similarity, list[float]),
        ("POST", "/predict", predict, list[Prediction] | list[list[Prediction]]),
        ("POST", "/", embed_or_compare, list[list[float]] | list[float]),
        ("POST", "/rerank", rerank, list[Rank] | RerankAnswer),
        ("POST", "/v1/rerank", rerank, list[Rank] | RerankAnswer),
        ("POST", "/v2/rerank", rerank, list[Rank] | RerankAnswer),
        ("POST", "/tokenize", tokenize, list[list[Token]]),
    ):
        errors = _TEI_ERRORS if path in TEI_ROUTES else _OPENAI_ERRORS
        app.add_api_route(path, answer, methods=[method], response_model=shape, responses=errors, dependencies=closed)
    app.add_api_route("/info", info, response_model=Info)
    app.add_api_route("/health", health, responses={503: {"model": ErrorAnswer, "description": "Restart it"}})
    app.add_api_route("/ready", ready, responses={503: {"model": ErrorAnswer, "description": "Not ready"}})
    for path, page in (("/metrics", metrics_page), ("/", front_page), ("/report", report)):
        app.add_api_route(path, page, include_in_schema=False)
    app.mount("/page", StaticFiles(directory=_PAGE))
    return Door(app, options, metrics, keys, trace)


async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
    """Embed texts, or lists of token ids, in OpenAI's form.

    A text beyond the model's length is cut; header `x-truncated` counts them. `int8`, `binary` and `ubinary` are
    Cohere's and Jina's: of `int8` the largest number of a vector is 127 or -127, so compare by cosine.
    """
    form = body.embedding_type or body.encoding_format
    wanted = Wanted(body.model, normalize=None, dimensions=body.dimensions)
    answer = await _embedded(request, body.input, "input", wanted)
    found = await _response(request, answer, partial(openai, answer, form))
    request.state.facts["format"] = form
    return found


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
    wanted = Wanted(
        body.model,
        normalize=body.normalize,
        whole=not body.truncate,
        role=body.prompt_name,
        dimensions=body.dimensions,
    )
    answer = await _embedded(request, body.inputs, "inputs", wanted)
    return await _response(request, answer, lambda: answer.rows)


async def similarity(body: SimilarityRequest, request: Request) -> Response:
    """Compare one sentence with others: their cosines."""
    given, more = body.inputs, body.parameters
    wanted = Wanted(body.model, whole=not more.truncate, role=more.prompt_name)
    answer = await _embedded(request, [given.source_sentence, *given.sentences], "inputs.sentences", wanted)
    return await _response(request, answer, lambda: cosine_similarity(answer.vectors[:1], answer.vectors[1:])[0])


async def predict(body: PredictRequest, request: Request) -> Response:
    """Tell the label of each text in the form of Text Embeddings Inference: all labels, the likeliest first.

    A text whose first probability is below header `x-threshold` may well have none of the labels: it is unknown, and so
    is one that says nothing (empty, punctuation, N/A), as for `cse encode --classify`. Header `x-unknown` counts them.
    """
    answer = await _embedded(request, body.inputs, "inputs", Wanted(body.model, whole=not body.truncate))
    classifier = answer.classifier
    if classifier is None:
        raise ServiceError(424, "this model has no classifier: it was exported without labelled texts")
    told, facts = await asyncio.to_thread(classifier.classify, answer.vectors), classifier.facts
    score = classifier.logits if body.raw_scores else classifier.probabilities

    def tree() -> object:
        found = predictions(score(answer.vectors), facts.labels)
        return found[0] if isinstance(body.inputs, str) else found

    found = await _response(request, answer, tree)
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    unknown = sum(not one.known or is_blank(text) for one, text in zip(told, texts, strict=True))
    found.headers["x-threshold"], found.headers["x-unknown"] = str(facts.threshold), str(unknown)
    return found


async def embed_or_compare(body: TeiRequest, request: Request) -> Response:
    """Answer as ``/embed``, or as ``/similarity`` where ``inputs`` has a ``source_sentence``."""
    return await (similarity(body, request) if isinstance(body, SimilarityRequest) else embed(body, request))


async def rerank(body: RerankRequest, request: Request) -> Response:
    """Order texts by their cosines with a query, the nearest first: no model reads both, as a reranker's would.

    `texts` are answered in the form of Text Embeddings Inference, `documents` in Cohere's and Jina's. Where the model
    declares a query, query and texts are read in their roles.
    """
    service: Service = request.app.state.service
    tei = body.documents is None
    texts = body.texts if tei else body.documents
    _check([body.query], service.options, "query")
    _check(texts, service.options, "texts" if tei else "documents")
    wanted = Wanted(body.model, whole=not body.truncate)
    scores, answer = await service.rerank(body.query, texts, wanted, request.state.client)

    def tree() -> object:
        if tei:
            return ranked(scores, "score", [{"text": text} for text in texts] if body.return_text else [], body.top_n)
        shown = [{"document": {"text": text}} for text in texts] if body.return_documents else []
        results = ranked(scores, "relevance_score", shown, body.top_n)
        facts = {"id": request.state.id, "model": answer.model, "results": results, "usage": usage(answer)}
        return facts | {"meta": {"tokens": {"input_tokens": answer.tokens}}}

    return await _response(request, answer, tree)


async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    """Spell texts in the model's tokens, cut at nothing, in the form of Text Embeddings Inference."""
    service: Service = request.app.state.service
    texts = _listed(body.inputs)
    _check(texts, service.options, "inputs")
    wanted = Wanted(body.model, role=body.prompt_name)
    read, found = await service.tokenize(texts, wanted, request.state.client, special=body.add_special_tokens)
    content = await asyncio.to_thread(lambda: orjson.dumps(list(map(spelled, read, found))))
    return Response(content, media_type=_JSON)


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
        "normalize": encoder.bank.bare.facts.normalize,
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
    text = await asyncio.to_thread(generate_latest, service.metrics.registry)
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


async def _embedded(request: Request, given: Any, param: str, wanted: Wanted) -> Answer:
    """Return the vectors of a body's texts, or refuse them."""
    service: Service = request.app.state.service
    inputs = _listed(given)
    _check(inputs, service.options, param)
    return await service.embed(inputs, wanted, request.state.client)


async def _response(request: Request, answer: Answer, tree: Callable[[], object]) -> Response:
    """Answer with a tree, which is made and written in another thread where it is large."""

    def write() -> bytes:
        return orjson.dumps(tree(), option=orjson.OPT_SERIALIZE_NUMPY)

    many = len(answer.vectors) > _MANY
    content = await asyncio.get_running_loop().run_in_executor(None, write) if many else write()
    times = {
        "tokenize_ms": answer.tokenize_seconds * 1000,
        "queue_ms": answer.queue_seconds * 1000,
        "compute_ms": answer.compute_seconds * 1000,
    }
    request.state.facts = {
        "texts": len(answer.vectors),
        "tokens": answer.tokens,
        "model": answer.model,
        "dimension": answer.vectors.shape[1],
        "truncated": answer.truncated,
        "cached": answer.cached,
        **{name: round(ms, 3) for name, ms in times.items()},
    }
    return Response(
        content,
        media_type=_JSON,
        headers={
            "x-truncated": str(answer.truncated),
            "x-compute-tokens": str(answer.tokens),
            "x-tokenization-time": str(round(times["tokenize_ms"])),
            "x-queue-time": str(round(times["queue_ms"])),
            "x-inference-time": str(round(times["compute_ms"])),
        },
    )


def _start_tracing() -> Trace:
    """Return what is told of each request; nothing of OpenTelemetry is imported without ``--otel``."""
    try:
        from deploy.server.tracing import start

        return start()
    except ImportError:
        raise CseError("--otel: needs OpenTelemetry: pip install 'cse[otel]'") from None


def _listed(given: Any) -> list[Any]:
    """Return one text as a list of one."""
    return [given] if isinstance(given, str) else given


def _check(inputs: Sequence[Any], options: Options, param: str) -> None:
    """Refuse token ids and too long texts."""
    if not isinstance(inputs[0], str):
        raise CseError(
            f"{param}: token ids; most clients send those of OpenAI's tokenizer, which are other words here: send "
            "texts (LangChain: check_embedding_ctx_length=False)"
        )
    longest = max(range(len(inputs)), key=lambda index: len(inputs[index]))
    if len(inputs[longest]) > options.max_characters:
        message = f"{param}[{longest}]: {len(inputs[longest])} characters; a text may have {options.max_characters}"
        raise ServiceError(413, message, param=param, code="input_too_long")
