"""nginx with deploy/nginx.conf before the server: what it drops, and what gets through."""

import contextlib
import shutil
import signal
import socket
import ssl
import subprocess
from pathlib import Path

import httpx
import openai
import pytest

from deploy.server.keys import digest
from deploy.server.run import listen
from tests.deploy.servers import serving
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed"),
]
CONFIGURATION = Path(__file__).parents[2] / "deploy" / "nginx.conf"
LIMIT = 16 * 2**20
MAIN = """
daemon off; pid {folder}/pid; error_log {folder}/error; events {{ worker_connections 1024; }}
http {{
    access_log off; include {folder}/cse.conf;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
}}
"""


@pytest.fixture(scope="module")
def faced(small_bundle, tmp_path_factory):
    """Address of nginx before a server, and a TLS context that trusts it."""
    folder = tmp_path_factory.mktemp("nginx")
    (folder / "keys").write_text(f"{digest('key')}\n")
    make = "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -days 1 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", folder / "cse.key", "-out", folder / "cse.crt"]
    subprocess.run([*make.split(), *names], check=True, capture_output=True)
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    with serving(small_bundle, "--api-keys", folder / "keys", log=folder / "log") as server:
        text = CONFIGURATION.read_text()
        for given, ours in (
            ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
            ("127.0.0.1:8080;", f"127.0.0.1:{server.address[1]};"),
            ("/etc/nginx/cse", f"{folder}/cse"),
        ):
            assert given in text
            text = text.replace(given, ours)
        (folder / "cse.conf").write_text(text)
        (folder / "nginx.conf").write_text(MAIN.format(folder=folder))
        process = subprocess.Popen(["nginx", "-e", str(folder / "error"), "-c", str(folder / "nginx.conf")])

        def listens():
            assert process.poll() is None
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                return True

        try:
            wait_for(listens, seconds=20)
            yield ("localhost", port), ssl.create_default_context(cafile=str(folder / "cse.crt"))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)


def test_openais_client_gets_through(faced):
    (host, port), trusted = faced
    with httpx.Client(verify=trusted) as http:
        client = openai.OpenAI(base_url=f"https://{host}:{port}/v1", api_key="key", http_client=http, max_retries=0)
        for texts in (["the cat sat"] * 2000, ["the cat " * 12_000] * 50):  # 5 MB
            assert len(client.embeddings.create(model="small", input=texts).data) == len(texts)
        for route in ("/health", "/metrics"):  # from this machine
            assert http.get(f"https://{host}:{port}{route}").status_code == 200


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("X: " + "x" * 9000, 400),
        ("X: y\r\n" * 7000, 400),
        (f"Authorization: Bearer key\r\nContent-Length: {LIMIT + 1}\r\n\r\n", 413),
        (f"Authorization: Bearer wrong\r\nContent-Length: {LIMIT}\r\n\r\n", 401),
        ("Authorization: Bearer wrong\r\nTransfer-Encoding: chunked\r\n\r\n", 401),
    ],
    ids=["long line", "many lines", "large body", "no key", "no key, chunked"],
)
def test_a_large_head_or_body_or_one_without_a_key_is_refused_before_it_is_sent(faced, head, status):
    address, trusted = faced
    with trusted.wrap_socket(socket.create_connection(address, timeout=30), server_hostname="localhost") as one:
        one.sendall(f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\n{head}".encode())
        assert one.recv(4096).startswith(b"HTTP/1.1 %d" % status)
