"""The DVC remote as an S3 bucket, on a server that speaks the protocol on loopback."""

from __future__ import annotations

import json
import shutil

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.flows.prefect_server import free_port
from tests.flows.test_train_cse import environment_of
from tests.pipeline.workspace import STAGES, Workspace, ran

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SECRETS = {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "something", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture
def bucket(monkeypatch):
    """An empty bucket and the address of its server."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=free_port(), verbose=False)
    server.start()
    url = f"http://127.0.0.1:{server._port}"
    client = boto3.client("s3", endpoint_url=url)
    client.create_bucket(Bucket="models")
    yield client, url
    server.stop()


def test_push_and_pull_through_s3(bucket, finished_tiny_clone, tmp_path):
    """The two lines of docs/pipeline.md, a flow that pushes, and a clone elsewhere that pulls the same bytes."""
    client, url = bucket
    workspace = finished_tiny_clone.copy(tmp_path / "here" / "clone")
    workspace.environment |= environment_of(workspace) | SECRETS
    workspace.dvc("remote", "add", "--default", "shared", "s3://models/cse")
    workspace.dvc("remote", "modify", "shared", "endpointurl", url)
    workspace.commit()
    output = workspace.run("cse", "flow", "train", "--push")
    assert "Task run 'push' - Finished in state Completed" in output
    keys = [found["Key"] for found in client.list_objects_v2(Bucket="models")["Contents"]]
    assert [key for key in keys if key.startswith("cse/files/md5/")]
    assert [key for key in keys if key.startswith("cse/runs/")], "and what was computed from what"
    workspace.commit()

    elsewhere = Workspace(tmp_path / "there" / "clone")
    workspace.run("git", "clone", "--quiet", str(workspace.folder), str(elsewhere.folder))
    elsewhere.environment |= SECRETS
    shutil.copytree(workspace.folder / "backbone", elsewhere.folder / "backbone", dirs_exist_ok=True)
    elsewhere.dvc("pull")
    assert ran(elsewhere.dvc("repro")) == []
    outputs = ("data/prepared", "data/checkpoint", "data/bundle", "data/evaluation")
    assert elsewhere.bytes_of(*outputs) == workspace.bytes_of(*outputs)
    assert json.loads(elsewhere.dvc("status", "--json")) == {}


def test_a_bucket_that_is_not_there(bucket, finished_tiny_clone, tmp_path):
    workspace = finished_tiny_clone.copy(tmp_path / "clone")
    workspace.environment |= environment_of(workspace) | SECRETS
    workspace.dvc("remote", "add", "--default", "shared", "s3://no-such-bucket/cse")
    workspace.dvc("remote", "modify", "shared", "endpointurl", bucket[1])
    output = workspace.run("cse", "flow", "train", "--push", fails=True)
    assert "error: push: the remote refused or does not respond: The specified bucket does not exist" in output
    assert "Retry" not in output, "it will not be there in a minute either"
    assert output.count("Finished in state Skipped") == len(STAGES)
