"""A server that does nothing: the same vector for every text, to measure what the load generator itself costs.

python -m benchmarks.peers.idle PORT
"""

from __future__ import annotations

import asyncio
import json
import sys

from benchmarks.asking import new_loop

DIMENSION = 384
_VECTOR = json.dumps([round(0.001 * number - 0.2, 9) for number in range(DIMENSION)])


def answer_with(body: str) -> bytes:
    """Return a whole HTTP answer."""
    return f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


MODELS = answer_with('{"object":"list","data":[{"id":"idle","object":"model"}]}')
VECTOR = answer_with(
    '{"object":"list","data":[{"object":"embedding","index":0,"embedding":' + _VECTOR + '}],"model":"idle"}'
)


class Idle(asyncio.Protocol):
    """Answers every request with one vector, as soon as its body is complete."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start with nothing received."""
        self.transport, self.received = transport, bytearray()

    def data_received(self, data: bytes) -> None:
        """Answer once the request is complete."""
        self.received += data
        head, gap, body = self.received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0]) if head.startswith(b"POST") else 0
        if gap and len(body) >= length:
            self.received.clear()
            self.transport.write(MODELS if head.startswith(b"GET") else VECTOR)  # type: ignore[attr-defined]


async def serve(port: int) -> None:
    """Serve for ever."""
    server = await asyncio.get_running_loop().create_server(Idle, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serve(int(sys.argv[1])))
