"""Run the application with uvicorn."""

from __future__ import annotations

import resource
import signal
import socket
import sys
from types import FrameType

import uvicorn

from cse.errors import CseError, error_line
from deploy.server.app import create_app
from deploy.server.door import is_loopback
from deploy.server.logs import log, set_up
from deploy.server.options import Options

_SWITCH_SECONDS = 0.0005  # a lane that has computed waits no longer than this for the event loop's thread
_BACKLOG = 2048
_FILES = 65_536
_OTHER_FILES = 128  # the server's own


def run(options: Options, host: str, port: int, drain: float) -> None:
    """Serve until SIGTERM or Ctrl-C; requests in progress are finished."""
    set_up()
    sys.setswitchinterval(_SWITCH_SECONDS)
    listener = listen(host, port)  # first: it fails sooner than a model loads
    app = create_app(options)
    address, found = listener.getsockname()[:2]
    if not is_loopback(address):
        if options.api_keys is None:
            log.warning("listening on %s without API keys: whoever reaches this machine can use it", address)
        log.warning("a client may send without end: put a proxy before the server, as in deploy/nginx.conf")
    config = uvicorn.Config(
        app,
        http="httptools",
        limit_concurrency=min(options.max_connections, _allowed_files() - _OTHER_FILES),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, round(drain)),
        backlog=_BACKLOG,
        lifespan="on",
    )
    server = _Server(config, f"http://{f'[{address}]' if ':' in address else address}:{found}")
    app.metrics.connections.set_function(lambda: len(server.server_state.connections))
    server.run([listener])


def _allowed_files() -> int:
    """Raise the limit on open files, which many systems set at 1,024, and return it: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(wanted, soft)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, url: str) -> None:
        super().__init__(config)
        self._url = url

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain on the first signal, stop on the second; uvicorn would end with the signal's exit code."""
        log.info("stopping" if self.should_exit else "draining", extra={"facts": {"signal": signal.Signals(sig).name}})
        self.force_exit = self.should_exit
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            log.info("listening", extra={"facts": {"url": self._url}})


def listen(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address; port 0 takes any free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise CseError(
            f"{host}:{port}: cannot listen there ({error_line(error)}); choose another --port or --host"
        ) from None
    listener.set_inheritable(True)
    return listener
