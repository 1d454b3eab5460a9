"""A span for each request that embeds, for OpenTelemetry, in the words of its conventions for generative AI.

The server imports this module, and with it OpenTelemetry, only with ``--otel``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial

from opentelemetry import propagate
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.trace import SpanKind, StatusCode, Tracer

from cse.errors import CseError

# what the log calls it, and the conventions; anything else is ours
_NAMES = {
    "model": "gen_ai.response.model",
    "tokens": "gen_ai.usage.input_tokens",
    "dimension": "gen_ai.embeddings.dimension.count",
    "route": "http.route",
    "status": "http.response.status_code",
}
_OTHERS = ("/v1/models", "/tokenize")  # embed nothing
_FIXED = {"gen_ai.operation.name": "embeddings", "gen_ai.provider.name": "cse"}


def start() -> Callable[[Mapping[str, str], Mapping[str, str | int | float]], None]:
    """Return ``note``; spans go where the environment's ``OTEL_*`` say.

    The provider is our own: a global one would have FastAPI make three more spans of each request.
    """
    os.environ.setdefault("OTEL_SERVICE_NAME", "cse")
    provider = TracerProvider()  # it sends what is left when the process ends
    provider.add_span_processor(BatchSpanProcessor(_exporter(os.environ.get("OTEL_TRACES_EXPORTER", "otlp"))))
    return partial(note, provider.get_tracer("cse"))


def _exporter(name: str) -> SpanExporter:
    if name == "console":
        return ConsoleSpanExporter()
    if name != "otlp":
        raise CseError(f"OTEL_TRACES_EXPORTER: {name!r} is not known; otlp or console")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def note(tracer: Tracer, headers: Mapping[str, str], facts: Mapping[str, str | int | float]) -> None:
    """Send the span of a request that has just ended; its parent is the one that ``traceparent`` names.

    Args:
        facts: as the log says them; what is known of an answer lacks where a request is refused.
    """
    if facts["route"] in _OTHERS:
        return
    now = time.time_ns()
    attributes: dict[str, str | int | float | list[str]] = {**_FIXED}
    attributes |= {_NAMES.get(name, f"cse.{name}"): value for name, value in facts.items()}
    model, status = facts.get("model"), int(facts["status"])
    if model is not None:
        attributes["gen_ai.request.model"] = model
    if "format" in facts:
        attributes["gen_ai.request.encoding_formats"] = [str(attributes.pop("cse.format"))]
    if status >= 400:
        attributes["error.type"] = str(status)
    span = tracer.start_span(
        "embeddings" if model is None else f"embeddings {model}",
        context=propagate.extract(headers),
        kind=SpanKind.SERVER,
        attributes=attributes,
        start_time=now - round(float(facts["ms"]) * 1e6),
    )
    if status >= 500:
        span.set_status(StatusCode.ERROR)
    span.end(now)
