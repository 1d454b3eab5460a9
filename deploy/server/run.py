"""Run the application with uvicorn."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import signal
import socket
import sys
from types import FrameType
from typing import ClassVar

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cse.errors import CseError, error_line
from deploy.server.app import create_app
from deploy.server.logs import log, set_up
from deploy.server.options import Options

_SWITCH_SECONDS = 0.0005  # a lane that has computed waits no longer than this for the event loop's thread
_BACKLOG = 2048
_FILES = 65_536
_OTHER_FILES = 128  # the server's own
_HEAD = 65_536  # bytes of a request's head


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol, which hangs up on a client that does not send the head of a request, or does not read.

    Neither uvicorn nor httptools limits how long or how large a head is.
    """

    send_seconds = 20.0
    read_seconds = 60.0
    opened = 0
    most = _FILES  # connections
    silent: ClassVar[dict[_Protocol, None]] = {}  # those who have not asked, or not again; the longest first
    _head: asyncio.TimerHandle | None = None  # runs while a head arrives
    _size = 0  # bytes of the head so far
    _heads = 0  # that have arrived whole
    _arriving = True  # whether what comes next is a head

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give the client time to send the head of a request; beyond ``most``, the longest silent client gives way."""
        super().connection_made(transport)
        _Protocol.opened += 1
        self._clock: asyncio.TimerHandle | None = None
        self._await_head()
        self.silent[self] = None
        if _Protocol.opened > self.most:
            next(iter(self.silent))._hang_up()  # this one, if all others are being answered

    def data_received(self, data: bytes) -> None:
        """Count what belongs to a head, of the first request or of a later one on the same connection."""
        if self._arriving:
            self._await_head()
        before = (self._arriving, self._heads)
        super().data_received(data)
        if before == (True, self._heads) and self._arriving:  # else what came ended a head, and may hold a body
            self._size += len(data)
            if self._size > _HEAD:
                self._hang_up()

    def on_message_begin(self) -> None:
        """Begin a head; it may follow in one piece with what is before it."""
        self._size, self._arriving = 0, True
        self._await_head()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or refuse the request with 400 if its headers and trailers are too large together."""
        self._size += len(name) + len(value)
        if self._size > _HEAD:
            raise ValueError("the head is too large")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop the clock: the head of a request is there."""
        self._arriving = False
        self._heads += 1
        self._stop_head()
        self.silent.pop(self, None)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Expect another head, as what comes next."""
        self._size, self._arriving = 0, True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Count the client as silent until it asks again, unless it already has."""
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self.silent[self] = None

    def pause_writing(self) -> None:
        """Give the client time to read what waits for it, answers that are complete included."""
        super().pause_writing()
        self._stop_clock()
        self._clock = self.loop.call_later(self.read_seconds, self._hang_up)

    def resume_writing(self) -> None:
        """Stop the clock: the client has read nearly all."""
        self._stop_clock()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        _Protocol.opened -= 1
        self.silent.pop(self, None)
        self._stop_clock()
        self._stop_head()
        super().connection_lost(exc)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _await_head(self) -> None:
        if self._head is None and not self.transport.is_closing():
            self._head = self.loop.call_later(self.send_seconds, self._hang_up)

    def _stop_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _hang_up(self) -> None:
        self.silent.pop(self, None)  # at once: the connection is lost later
        self.transport.abort()


def run(options: Options, host: str, port: int, drain: float) -> None:
    """Serve until SIGTERM or Ctrl-C; requests in progress are finished."""
    set_up()
    sys.setswitchinterval(_SWITCH_SECONDS)
    _Protocol.most = min(options.max_connections, _allowed_files() - _OTHER_FILES)
    _Protocol.send_seconds, _Protocol.read_seconds = options.receive_timeout, options.timeout
    listener = listen(host, port)  # first: it fails sooner than a model loads
    app = create_app(options)
    app.metrics.watch(app.metrics.connections, lambda: _Protocol.opened)
    address, found = listener.getsockname()[:2]
    if not _is_loopback(address) and options.api_keys is None:
        log.warning("listening on %s without API keys: whoever reaches this machine can use it", address)
    config = uvicorn.Config(
        app,
        http=_Protocol,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, round(drain)),
        backlog=_BACKLOG,
        lifespan="on",
    )
    server = _Server(config, f"http://{f'[{address}]' if ':' in address else address}:{found}")
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


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
