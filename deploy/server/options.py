"""What a server is told when it starts."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from cse.choices import Provider
from cse.runtime.domain import KEPT_BYTES


class Options(BaseModel):
    """Options of one server process; ``cse serve --help`` shows them."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    model: str = Field(description="Bundle, bank, or NAME@STAGE of the registry.")
    name: str | None = Field(None, description="Model id of a bundle in requests; default: its name or folder.")
    device: Provider = Field("auto", description="Where to run; `openvino`: the CPU, in bfloat16 if it can.")
    threads: int | None = Field(None, ge=1, le=1024, description="CPU threads; default: one per usable CPU.")
    max_texts: int = Field(2048, ge=1, description="Most texts in a request.")
    max_characters: int = Field(100_000, ge=1, description="Most characters in a text.")
    max_body: int = Field(16 * 2**20, ge=1024, description="Most bytes in a request.")
    max_connections: int = Field(8192, ge=1, description="Most connections; beyond them requests get 503.")
    max_queue_tokens: int = Field(262_144, ge=1, description="Tokens that may wait; beyond them requests get 429.")
    batch_tokens: int | None = Field(
        None, ge=1, description="Tokens of a batch, padding included; default: 384 on a CPU, 16384 on a GPU."
    )
    max_domain_bytes: int = Field(
        KEPT_BYTES, ge=1, description="Bytes of a bank's domains in memory; the longest unused are read again."
    )
    cache_bytes: int = Field(0, ge=0, description="Bytes of vectors to keep for texts that come again; 0: none.")
    timeout: float = Field(
        60.0,
        gt=0,
        description="Seconds of work that may wait, and without any result after which a request is given up.",
    )
    receive_timeout: float = Field(20.0, gt=0, description="Seconds in which a client must send its request.")
    follow_seconds: float = Field(30.0, gt=0, description="Seconds between questions for a new promotion.")
    api_keys: Path | None = Field(None, description="File of hashed API keys, see `cse serve-key`.")
    report: Path | None = Field(None, description="HTML report to link from the page.")
    otel: bool = Field(False, description="Send OpenTelemetry a span of each request; needs cse[otel].")
    log_requests: bool = Field(False, description="Log every request, without its texts.")
