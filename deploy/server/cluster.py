"""The same application under Ray Serve; replicas, autoscaling and GPUs are settings of ``deploy/serve.yaml``."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import DeploymentActorConfig

from cse.runtime.domain import is_name
from deploy.server.door import App, Receive, Scope, Send
from deploy.server.errors import ServiceError
from deploy.server.logs import log, set_up
from deploy.server.options import Options
from deploy.server.together import Alone, Board, Snapshot

NAME = "Embeddings"
_DOMAINS = 1000  # names that Ray Serve remembers of a replica; about as many as ``max_domain_bytes`` keeps
_IN_PROGRESS = 512  # requests that a replica holds; its own queue says when it is full
_HEALTH_SECONDS = 2.0
_DRAIN_SECONDS = 30.0
_BOARD, _BOARD_SECONDS = "board", 5.0
_TELL_SECONDS = 1.0
_LOGGING = {"encoding": "JSON", "log_level": "ERROR", "enable_access_log": False}


def app_builder(args: dict[str, Any]) -> serve.Application:
    """Return the application for ``serve run``.

    Args:
        args: as in ``Options``. Ray Serve would check them itself, but cannot read an annotation that is a string.

    Raises:
        pydantic.ValidationError: an argument is unknown or not valid.
    """
    return _deployment(Options.model_validate(args)).bind()


def _deployment(options: Options) -> serve.Deployment:
    def build() -> Routed:
        from deploy.server.app import create_app

        set_up()
        return Routed(create_app(options, Together()))

    return serve.deployment(
        name=NAME,
        max_ongoing_requests=_IN_PROGRESS,
        health_check_period_s=_HEALTH_SECONDS,
        graceful_shutdown_timeout_s=_DRAIN_SECONDS,
        deployment_actors=[
            DeploymentActorConfig(name=_BOARD, actor_class=ray.remote(Board), actor_options={"num_cpus": 0})
        ],
    )(serve.ingress(build)())


class Routed:
    """Middleware that tells Ray Serve which domains of a bank this replica was asked for, if requests name theirs.

    A request that names its domain in the header ``serve_multiplexed_model_id`` goes to a replica that has it, so that
    not every replica reads every domain.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        name = serve.get_multiplexed_model_id() if scope["type"] == "http" else ""
        if is_name(name):
            await _has(name)
        await self._app(scope, receive, send)


@serve.multiplexed(max_num_models_per_replica=_DOMAINS)
async def _has(name: str) -> str:
    """Return a domain's name; Ray Serve notes that it was asked for here. The bank reads it and keeps it."""
    return name


class Together(Alone):
    """The way from a replica to the others: a board that Ray Serve keeps beside them."""

    def __init__(self) -> None:
        self._known: list[Snapshot] = []
        self._lock = asyncio.Lock()

    def start(self, own: Callable[[], Awaitable[Snapshot]]) -> None:
        """Tell the board every second what this replica knows."""
        self._own, self._name = own, serve.get_replica_context().replica_id.unique_id
        self._task = asyncio.create_task(self._keep_telling())

    def stop(self) -> None:
        """Tell it nothing more; what was counted stays."""
        self._task.cancel()

    async def others(self) -> list[Snapshot]:
        """Return what the others have told last; without a board, what it said before, so that no sum falls."""
        async with self._lock:  # an earlier snapshot must not arrive after a later one
            try:
                board = serve.get_deployment_actor(_BOARD)
                own = await self._own()
                async with asyncio.timeout(_BOARD_SECONDS):
                    self._known = await board.tell.remote(self._name, own)
                self.told = own.metrics
            except (ValueError, RayError, TimeoutError, ServiceError):
                log.warning("the replicas' board does not answer; the metrics of the others are those of before")
            return self._known

    async def _keep_telling(self) -> None:
        while True:
            await self.others()
            await asyncio.sleep(_TELL_SECONDS)


def run_replicas(options: Options, host: str, port: int, replicas: int) -> None:
    """Serve with several replicas on this machine, or on the cluster at ``RAY_ADDRESS``, until SIGTERM or Ctrl-C.

    The CPU threads are shared out among the replicas. A replica that dies is replaced while the others answer. While
    some are not ready, a line says every so often what they wait for.

    Raises:
        CseError: the cluster does not answer or cannot hold so many replicas, or the model does not load.
    """
    from cse.errors import CseError, Terminated
    from cse.process import handling, watching
    from cse.runtime.providers import usable_cpus
    from cse.scale.machines import WAIT_SECONDS, free_in_words, listed_machines, places, with_more
    from cse.scale.session import ray_session
    from deploy.server.run import listen

    set_up()
    threads = options.threads or max(1, usable_cpus() // replicas)
    ready, over = threading.Event(), threading.Event()

    def stop(number: int) -> None:
        again = over.is_set()
        over.set()
        if not ready.is_set() and not again:  # else Ray Serve goes on waiting for room; a second one lets it clean up
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    with listen(host, port) as free:
        port = free.getsockname()[1]
    with (
        ray_session(cpus=max(replicas, usable_cpus()) + 1),
        handling(stop, signal.SIGTERM, signal.SIGINT),
    ):
        there = with_more(ray)
        if places(there, 1) < replicas:
            raise CseError(
                f"--replicas {replicas}: each takes 1 CPU of one machine, and Ray has {listed_machines(there)}; "
                "give fewer, or add machines"
            )

        def waits() -> None:
            log.info("waiting", extra={"facts": {"for": "1 CPU for each replica", "now": free_in_words(ray)}})

        logging.getLogger("ray.serve").setLevel(logging.ERROR)  # its lines are not JSON
        serve.start(http_options={"host": host, "port": port}, logging_config=_LOGGING)
        deployment = _deployment(options.model_copy(update={"threads": threads}))
        try:
            application = deployment.options(num_replicas=replicas).bind()
            with watching(waits, WAIT_SECONDS):
                serve.run(application, name="cse", route_prefix="/", logging_config=_LOGGING)
            ready.set()
            log.info("listening", extra={"facts": {"url": f"http://{host}:{port}", "replicas": replicas}})
            over.wait()
            log.info("draining")
        finally:
            serve.shutdown()
