"""The same application under Ray Serve: replicas, autoscaling and several GPUs are settings of ``deploy/serve.yaml``."""

from __future__ import annotations

import os
import signal
import threading

# Ray must not report usage, nor restart itself inside `uv run`
for _name, _value in {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}.items():
    os.environ.setdefault(_name, _value)

import ray
from ray import serve

from cse.process import handling
from deploy.server.door import Door
from deploy.server.logs import log, set_up
from deploy.server.options import Options

NAME = "Embeddings"
_IN_PROGRESS = 512  # requests that a replica holds; its own queue says when it is full
_HEALTH_SECONDS = 2.0


def app_builder(args: Options) -> serve.Application:
    """Return the application for ``serve run``; the arguments are those of ``Options``."""

    def build() -> Door:
        from deploy.server.app import create_app

        set_up()
        return create_app(args)

    deployment = serve.deployment(
        name=NAME,
        max_ongoing_requests=_IN_PROGRESS,
        health_check_period_s=_HEALTH_SECONDS,
        graceful_shutdown_timeout_s=30,
    )(serve.ingress(build)())
    application: serve.Application = deployment.bind()
    return application


def run_replicas(options: Options, host: str, port: int, replicas: int) -> None:
    """Serve with several replicas on this machine until SIGTERM or Ctrl-C.

    The CPU threads are shared out among the replicas.
    """
    from cse.runtime.providers import usable_cpus

    threads = options.threads or max(1, usable_cpus() // replicas)
    set_up()
    over = threading.Event()
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        with handling(lambda _: over.set(), signal.SIGTERM, signal.SIGINT):
            serve.start(http_options={"host": host, "port": port})
            application = app_builder(options.model_copy(update={"threads": threads}))
            serve.run(application, name="cse", _local_testing_mode=False)
            log.info("listening", extra={"facts": {"url": f"http://{host}:{port}", "replicas": replicas}})
            over.wait()
            log.info("draining")
    finally:
        serve.shutdown()
        ray.shutdown()
