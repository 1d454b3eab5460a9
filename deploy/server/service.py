"""From a request's texts to its vectors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

from cse.errors import CseError
from cse.runtime.classifier import Classifier
from cse.runtime.domain import AUTO, Domain
from cse.runtime.encode import GPU_BATCH_TOKENS, unit_rows
from cse.runtime.onnx_encoder import CPU_BATCH_TOKENS, CPU_PADDING
from cse.runtime.tokens import Tokens
from cse.runtime.uses import QUERY, check_dimensions, role_for, text_of
from deploy.server.batcher import Batcher
from deploy.server.cache import Cache
from deploy.server.errors import ServiceError
from deploy.server.keys import Client
from deploy.server.logs import log
from deploy.server.metrics import Metrics
from deploy.server.models import Served, Storage, Target, folder_name, name_in
from deploy.server.options import Options
from deploy.server.registry import Follower
from deploy.server.waiting import BatchFacts, Work

_T = TypeVar("_T")

# tokens and rows of a batch, and the padding that costs as much as one more batch
_CPU, _GPU = (CPU_BATCH_TOKENS, 64, CPU_PADDING), (GPU_BATCH_TOKENS, 512, 2048)
_SHORT = 2000  # characters that are tokenised in less time than another thread takes to start


class Wanted(NamedTuple):
    """What a request wants of the vectors of its texts.

    Attributes:
        model: id of the model; None: the only one.
        normalize: whether vectors have unit length; None: as the model says.
        whole: whether to refuse texts that do not fit instead of cutting them.
        role: of each text, whose task text goes before it; None: as the id says, or no text.
        use: ``query`` or ``document``: in the role that the model declares for it, if any, whatever the id says.
        dimensions: how many numbers to keep of each vector; None: all.
    """

    model: str | None
    normalize: bool | None = True
    whole: bool = False
    role: str | None = None
    use: str | None = None
    dimensions: int | None = None


class Ran(NamedTuple):
    """Vectors (n, d) as the model computes them, how many of them were known, and seconds."""

    vectors: NDArray[np.float32]
    cached: int
    queue_seconds: float
    compute_seconds: float


class Answer(NamedTuple):
    """Vectors of a request.

    Attributes:
        vectors: (n, d) float32; with ``auto``, a narrower domain's end in zeros.
        domains: each text's domain, where the server chose it; else empty.
        cached: texts whose vectors were known.
        queue_seconds: from arrival to the first batch.
        classifier: of the model, or the domain, that the request names.
    """

    vectors: NDArray[np.float32]
    model: str
    tokens: int
    truncated: int
    domains: Sequence[Domain]
    cached: int
    tokenize_seconds: float
    queue_seconds: float
    compute_seconds: float
    classifier: Classifier | None

    @property
    def rows(self) -> list[NDArray[np.float32]]:
        """The vector of each text, each as long as its domain's are."""
        widths = [domain.dimension for domain in self.domains] or [self.vectors.shape[1]] * len(self.vectors)
        return [vector[:width] for vector, width in zip(self.vectors, widths, strict=True)]


class Service:
    """The model in service, the queue in front of it, and the limits on both."""

    def __init__(self, options: Options, metrics: Metrics) -> None:
        self.options, self.metrics = options, metrics
        self._follower: Follower | None = None
        self._served = self._open()
        encoder = self._served.encoder
        on_gpu = encoder.provider == "cuda"
        tokens, rows, padding = _GPU if on_gpu else _CPU
        self.batch_tokens = options.batch_tokens or tokens
        self._batcher = Batcher(
            lanes=1 if on_gpu else encoder.threads,
            batch_tokens=self.batch_tokens,
            batch_rows=rows,
            padding=padding,
            capacity=options.max_queue_tokens,
            patience=options.timeout,
            ran=self._ran,
        )
        self._cache = Cache(options.cache_bytes)
        self._beside = ThreadPoolExecutor(2, thread_name_prefix="tokenize")
        self._storage = Storage()
        metrics.queue_texts.set_function(lambda: self._batcher.waiting[0])
        metrics.queue_tokens.set_function(lambda: self._batcher.waiting[1])
        metrics.domain_bytes.set_function(lambda: encoder.bank.bytes)
        metrics.serves(self._served.name, self._served.version)
        log.info("serving", extra={"facts": {"model": self._served.name, "version": self._served.version}})

    @property
    def served(self) -> Served:
        """The model in service now."""
        return self._served

    @property
    def ready(self) -> bool:
        """Whether a request would be taken."""
        return self.alive and not self._batcher.full

    @property
    def alive(self) -> bool:
        """Whether every thread that computes still runs."""
        return self._batcher.alive

    def close(self) -> None:
        """Answer what waits, and stop."""
        if self._follower is not None:
            self._follower.stop()
        self._batcher.close()
        self._beside.shutdown()

    async def embed(self, inputs: Sequence[str], wanted: Wanted, client: Client) -> Answer:
        """Return the vectors of texts.

        Raises:
            ServiceError: the model is unknown, not the client's or has no such role or number of dimensions, or the
                queue is full.
        """
        target = await self._target(wanted.model, client)
        role = _role(target, wanted)
        inputs = _with_task_text(inputs, target, role)
        _check_dimensions(wanted.dimensions, target)
        chosen, queued = await self._chosen(target, inputs, client.name)
        domains = _sides(target, chosen, role, len(inputs))
        begun = time.perf_counter()
        tokens = await self._tokenize(target, inputs, domains)
        tokenize_seconds = time.perf_counter() - begun
        if wanted.whole and tokens.truncated:
            message = (
                f"{tokens.truncated} of {len(inputs)} inputs exceed {target.max_length} tokens; send truncate: true"
            )
            raise ServiceError(413, message, param="inputs")
        ran = await self._run(target, tokens, domains, client.name, taken=bool(chosen))
        kept = np.ascontiguousarray(ran.vectors[:, : wanted.dimensions or target.dimension])
        count = int(tokens.starts[-1])
        self.metrics.texts.labels(target.id).inc(len(inputs))
        self.metrics.tokens.labels(target.id).inc(count)
        if tokens.truncated:
            self.metrics.truncated.labels(target.id).inc(tokens.truncated)
        return Answer(
            _scaled(kept, domains, wanted.normalize),
            model=target.id,
            tokens=count,
            truncated=tokens.truncated,
            domains=chosen,
            cached=ran.cached,
            tokenize_seconds=tokenize_seconds,
            queue_seconds=ran.queue_seconds + queued,
            compute_seconds=ran.compute_seconds,
            classifier=target.served.encoder.classifier_of(target.domain),
        )

    async def rerank(
        self, query: str, texts: Sequence[str], wanted: Wanted, client: Client
    ) -> tuple[NDArray[np.float32], Answer]:
        """Return the cosines (n) of a query with texts, each in its role if the model declares any, and the answer.

        Vectors of several domains do not compare: with ``auto``, the domain of the query is that of the texts.
        """
        if wanted.model == AUTO:
            (nearest,) = (await self.embed([query], wanted, client)).domains
            wanted = wanted._replace(model=nearest.name)
            client = client._replace(models=frozenset({nearest.name}))  # which ``auto`` may choose
        asked, found = await asyncio.gather(
            self.embed([query], wanted._replace(use=QUERY), client),
            self.embed(texts, wanted._replace(use="document"), client),
        )
        both = found._replace(
            vectors=np.concatenate([asked.vectors, found.vectors]),
            tokens=asked.tokens + found.tokens,
            truncated=asked.truncated + found.truncated,
            cached=asked.cached + found.cached,
        )
        return found.vectors @ asked.vectors[0], both

    async def tokenize(
        self, texts: Sequence[str], wanted: Wanted, client: Client, *, special: bool
    ) -> tuple[Sequence[str], list[Encoding]]:
        """Return texts with the task text of their role, and what the tokenizer says of them, cut at nothing.

        Raises:
            ServiceError: as ``embed``, or 413: there are more tokens than may wait.
        """
        target = await self._target(wanted.model, client)
        texts = _with_task_text(texts, target, _role(target, wanted))
        encode = partial(target.served.encoder.encodings, special=special)
        found = await asyncio.get_running_loop().run_in_executor(self._beside, encode, texts)
        count, most = sum(map(len, found)), self.options.max_queue_tokens
        if count > most:
            raise ServiceError(413, f"inputs: {count} tokens; an answer may have {most}", param="inputs")
        return texts, found

    async def _target(self, model: str | None, client: Client) -> Target:
        model = client.opened(model)
        if model is None:
            model = await self.stored(self._served.only)
        return await self.stored(self._served.target, model, client.models, name=name_in(model))

    async def stored(self, question: Callable[..., _T], *arguments: object, name: str = "") -> _T:
        """Return what a function answers that looks at the files of domains, if they may change.

        Args:
            name: whose file it looks at.

        Raises:
            ServiceError: 503, the folder or the file cannot be read, or not in time.
        """
        if self._served.encoder.bank.fixed:
            return question(*arguments)
        return await self._storage.ask(name, partial(question, *arguments))

    async def _chosen(self, target: Target, inputs: Sequence[str], client: str) -> tuple[list[Domain], float]:
        """Return the domain of each input that the server chooses, and the seconds that choosing waited."""
        if target.domain is not None:
            return [], 0.0
        bare = [target.served.encoder.bank.bare] * len(inputs)
        ran = await self._run(target, await self._tokenize(target, inputs, bare), bare, client)
        return await self.stored(target.served.nearest, ran.vectors, name=AUTO), ran.queue_seconds

    async def _tokenize(self, target: Target, texts: Sequence[str], domains: Sequence[Domain]) -> Tokens:
        encoder = target.served.encoder
        if sum(map(len, texts)) <= _SHORT:
            return encoder.tokenize(texts, domains)
        return await asyncio.get_running_loop().run_in_executor(self._beside, encoder.tokenize, texts, domains)

    async def _run(
        self, target: Target, tokens: Tokens, domains: Sequence[Domain], client: str, *, taken: bool = False
    ) -> Ran:
        """Return the vectors of texts: those that are known, and the others from the queue."""
        encoder, cache = target.served.encoder, self._cache
        keys = cache.keys(encoder, tokens, domains)
        known = cache.find(keys)
        rows = [row for row in range(len(domains)) if row not in known]
        if known:
            self.metrics.cached.labels(target.id).inc(len(known))
            tokens, domains = Tokens.of([tokens.row(row) for row in rows]), [domains[row] for row in rows]
        work = self._batcher.submit(encoder, tokens, domains, client, taken=taken)
        await self._done(work)
        bad = np.flatnonzero(~np.isfinite(work.vectors).all(axis=1))
        if len(bad):
            message = f"input[{rows[bad[0]]}]: the model's answer is not a finite number; its weights are damaged"
            raise ServiceError(424, message, code="model_failed")
        for row, vector in zip(rows, work.vectors, strict=True):
            if keys:
                cache.keep(keys[row], vector)
        vectors = work.vectors
        if known:
            vectors = np.empty((len(keys), encoder.dimension), np.float32)
            vectors[rows] = work.vectors
            vectors[list(known)] = list(known.values())
        if not rows:
            return Ran(vectors, len(known), 0.0, 0.0)
        queued = max(0.0, work.started - work.submitted)
        self.metrics.queue_seconds.observe(queued)
        return Ran(vectors, len(known), queued, max(0.0, time.perf_counter() - work.started))

    async def _done(self, work: Work) -> None:
        """Wait for the answers of rows in the queue, as long as batches end."""
        batcher, seconds = self._batcher, self.options.timeout
        try:
            ended = -1.0
            while not work.done.done():
                if ended == batcher.ended:
                    raise ServiceError(503, f"nothing was computed within {seconds:g} s", code="timeout", retry_after=1)
                ended = batcher.ended
                await asyncio.wait([work.done], timeout=seconds)
            await work.done
        except (asyncio.CancelledError, ServiceError):
            batcher.cancel(work)
            raise
        except Exception as error:
            log.exception("a batch failed")
            raise ServiceError(
                424, "the model failed on this request; the log says where", code="model_failed"
            ) from error

    def _ran(self, batch: BatchFacts) -> None:
        self.metrics.batch_texts.observe(batch.rows)
        self.metrics.batch_tokens.observe(batch.tokens)
        self.metrics.padding_tokens.inc(batch.padded - batch.tokens)
        self.metrics.compute_seconds.observe(batch.seconds)

    def _open(self) -> Served:
        path = Path(self.options.model)
        if "@" in self.options.model and not path.exists():
            self._follower = Follower(
                self.options.model, load=self._load, take=self._take, failed=self.metrics.load_failures.inc
            )
            return self._follower.start(self.options.follow_seconds)
        return self._load(path, self.options.name or folder_name(path), None)

    def _load(self, folder: Path, name: str, version: str | None) -> Served:
        options = self.options
        found = {"provider": options.device, "threads": options.threads, "kept_bytes": options.max_domain_bytes}
        return Served.load(folder, options.name or name, version, **found)

    def _take(self, served: Served) -> None:
        self._served = served
        self.metrics.serves(served.name, served.version)


def _sides(target: Target, chosen: Sequence[Domain], role: str | None, count: int) -> list[Domain]:
    """Return what encodes each of ``count`` texts: a domain, or the bare backbone beside a query side."""
    bare = target.served.encoder.bank.bare
    if target.domain is None:
        return [one.in_role(role, bare) for one in chosen]
    return [target.domain.in_role(role, bare)] * count


def _role(target: Target, wanted: Wanted) -> str | None:
    """Return the role in which texts are read: that of their use, or what a request names, by its id or beside it."""
    if wanted.use is not None:
        return role_for(wanted.use, target.texts)
    if wanted.role is not None and target.names_role and wanted.role != target.role:
        message = f"prompt_name: {wanted.role[:40]!r} is not the role of model {target.id}"
        raise ServiceError(400, message, param="prompt_name")
    return target.role if wanted.role is None else wanted.role


def _with_task_text(texts: Sequence[str], target: Target, role: str | None) -> Sequence[str]:
    """Return the texts with the role's task text before each."""
    try:
        before = text_of(role, target.texts)
    except CseError as error:
        raise ServiceError(400, f"prompt_name: {error}", param="prompt_name") from None
    return [before + text for text in texts] if before else texts


def _check_dimensions(wanted: int | None, target: Target) -> None:
    """Refuse a width that the model was not trained for."""
    encoder = target.served.encoder
    try:
        check_dimensions(wanted, encoder.widths, target.dimension)
    except CseError as error:
        raise ServiceError(400, str(error), param="dimensions", code="dimensions_not_supported") from None


def _scaled(vectors: NDArray[np.float32], domains: Sequence[Domain], normalize: bool | None) -> NDArray[np.float32]:
    """Return vectors (n, d), of unit length where that is wanted."""
    if normalize is None:
        unit = [index for index, domain in enumerate(domains) if domain.facts.normalize]
        vectors[unit] = unit_rows(vectors[unit])
        return vectors
    return unit_rows(vectors) if normalize else vectors
