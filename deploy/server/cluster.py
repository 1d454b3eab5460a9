"""The same application under Ray Serve; replicas, autoscaling and GPUs are settings of ``deploy/serve.yaml``."""

from __future__ import annotations

import logging
import signal
import threading
from typing import Any

from ray import serve

from deploy.server.door import Door
from deploy.server.logs import log, set_up
from deploy.server.options import Options

NAME = "Embeddings"
_IN_PROGRESS = 512  # requests that a replica holds; its own queue says when it is full
_HEALTH_SECONDS = 2.0
_DRAIN_SECONDS = 30.0
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
    def build() -> Door:
        from deploy.server.app import create_app

        set_up()
        return create_app(options)

    return serve.deployment(
        name=NAME,
        max_ongoing_requests=_IN_PROGRESS,
        health_check_period_s=_HEALTH_SECONDS,
        graceful_shutdown_timeout_s=_DRAIN_SECONDS,
    )(serve.ingress(build)())


def run_replicas(options: Options, host: str, port: int, replicas: int) -> None:
    """Serve with several replicas on this machine, or on the cluster at ``RAY_ADDRESS``, until SIGTERM or Ctrl-C.

    The CPU threads are shared out among the replicas. A replica that dies is replaced while the others answer.

    Raises:
        CseError: the cluster does not answer, or the model does not load.
    """
    from cse.process import handling
    from cse.runtime.providers import usable_cpus
    from cse.scale.session import ray_session
    from deploy.server.run import listen

    set_up()
    threads = options.threads or max(1, usable_cpus() // replicas)
    over = threading.Event()
    with listen(host, port) as free:
        port = free.getsockname()[1]
    with (
        ray_session(cpus=max(replicas, usable_cpus()) + 1),
        handling(lambda _: over.set(), signal.SIGTERM, signal.SIGINT),
    ):
        logging.getLogger("ray.serve").setLevel(logging.ERROR)  # its lines are not JSON
        serve.start(http_options={"host": host, "port": port}, logging_config=_LOGGING)
        deployment = _deployment(options.model_copy(update={"threads": threads}))
        try:
            serve.run(
                deployment.options(num_replicas=replicas).bind(), name="cse", route_prefix="/", logging_config=_LOGGING
            )
            log.info("listening", extra={"facts": {"url": f"http://{host}:{port}", "replicas": replicas}})
            over.wait()
            log.info("draining")
        finally:
            serve.shutdown()
