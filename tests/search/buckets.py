"""An S3 server on loopback."""

import boto3
import pytest
import s3fs
from moto.server import ThreadedMotoServer

from tests.flows.prefect_server import free_port


@pytest.fixture
def bucket(monkeypatch):
    """A client of an S3 server with the bucket `texts`; fsspec finds it through the environment, as people set it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=free_port(), verbose=False)
    server.start()
    url = f"http://127.0.0.1:{server._port}"
    for name, value in (("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    s3fs.S3FileSystem.clear_instance_cache()
    client = boto3.client("s3", endpoint_url=url)
    client.create_bucket(Bucket="texts")
    yield client
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()
