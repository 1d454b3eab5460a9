"""What Prometheus is told."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_TEXTS = (1, 2, 4, 8, 16, 32, 64)
_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 4096, 16384)


class Metrics:
    """The metrics of one server; each has a registry of its own."""

    def __init__(self) -> None:
        disable_created_metrics()  # a second series per series
        self.registry = made = CollectorRegistry()
        self.requests = Counter("cse_requests", "Requests answered.", ["route", "status"], registry=made)
        self.request_seconds = Histogram(
            "cse_request_seconds",
            "From a request's last byte to its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=made,
        )
        self.queue_texts = Gauge("cse_queue_texts", "Texts that wait for a batch.", registry=made)
        self.queue_tokens = Gauge("cse_queue_tokens", "Tokens that wait for a batch.", registry=made)
        self.queue_seconds = Histogram(
            "cse_queue_seconds", "From arrival in the queue to the first batch.", buckets=_SECONDS, registry=made
        )
        self.batch_texts = Histogram("cse_batch_texts", "Texts in a batch.", buckets=_TEXTS, registry=made)
        self.batch_tokens = Histogram(
            "cse_batch_tokens", "Tokens in a batch, without padding.", buckets=_TOKENS, registry=made
        )
        self.padding_tokens = Counter("cse_padding_tokens", "Padding computed.", registry=made)
        self.compute_seconds = Histogram("cse_compute_seconds", "Computing a batch.", buckets=_SECONDS, registry=made)
        self.texts = Counter("cse_texts", "Texts embedded.", ["model"], registry=made)
        self.tokens = Counter("cse_tokens", "Tokens embedded, without padding.", ["model"], registry=made)
        self.truncated = Counter("cse_truncated_texts", "Texts cut at the model's length.", ["model"], registry=made)
        self.cached = Counter("cse_cache_hits", "Texts whose vectors were known.", ["model"], registry=made)
        self.refused = Counter("cse_refused", "Requests refused.", ["reason"], registry=made)
        self.model = Gauge("cse_model_info", "The model in service.", ["model", "version"], registry=made)
        self.load_failures = Counter("cse_model_load_failures", "Promotions that did not load.", registry=made)
        self.domain_bytes = Gauge("cse_domain_bytes", "Bytes of a bank's domains in memory.", registry=made)
        self.connections = Gauge("cse_connections", "Open connections.", registry=made)

    def serves(self, model: str, version: str) -> None:
        """Record which model is in service now."""
        self.model.clear()
        self.model.labels(model, version).set(1)
