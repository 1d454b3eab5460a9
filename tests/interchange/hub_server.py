"""A hub on loopback: the routes that huggingface_hub calls to create, commit, list and download, over real HTTP."""

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

WRITER, READER = "hf_writer_token", "hf_reader_token"
LARGE = (".safetensors", ".onnx", ".data")  # go through LFS


@dataclass
class Repository:
    """A repository: its commits, the newest last; each is all files by name."""

    private: bool
    commits: list[dict[str, bytes]] = field(default_factory=lambda: [{".gitattributes": b"*.safetensors filter=lfs\n"}])

    @property
    def files(self) -> dict[str, bytes]:
        return self.commits[-1]

    def sha(self, number: int = -1) -> str:
        number %= len(self.commits)
        named = {name: hashlib.sha1(data).hexdigest() for name, data in self.commits[number].items()}
        return hashlib.sha1(json.dumps([number, named], sort_keys=True).encode()).hexdigest()


@dataclass
class Hub:
    """What a hub holds, and what it was asked for."""

    repos: dict[str, Repository] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    address: str = ""

    def seen(self, request: Request, name: str, revision: str) -> tuple[str, dict[str, bytes]]:
        """The commit hash and files of a branch or commit that the client may see."""
        repo = self.repos.get(name)
        if repo is None or (repo.private and not request.state.token):
            raise Missing("RepoNotFound")
        by_revision = {repo.sha(number): files for number, files in enumerate(repo.commits)}
        sha = repo.sha() if revision == "main" else revision
        if sha not in by_revision:
            raise Missing("RevisionNotFound")
        return sha, by_revision[sha]


class Missing(Exception):
    """A repository, revision or file that is not there."""


def git_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def make_app(hub: Hub) -> FastAPI:
    app = FastAPI()

    @app.middleware("http")
    async def check_token(request: Request, then):
        hub.asked.append(f"{request.method} {request.url.path}")
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in ("", WRITER, READER):
            said = {"X-Error-Message": "Invalid credentials in Authorization header"}
            return JSONResponse({"error": "Invalid credentials"}, 401, headers=said)
        if request.method == "POST" and "/validate-yaml" not in request.url.path and token != WRITER:
            return JSONResponse({"error": "no right to write"}, 403 if token else 401)
        request.state.token = token
        return await then(request)

    @app.exception_handler(Missing)
    def missing(request: Request, error: Missing):
        code = str(error)
        return JSONResponse({"error": code}, 404, headers={"X-Error-Code": code, "X-Error-Message": code})

    _writing(app, hub)
    _committing(app, hub)
    _reading(app, hub)
    return app


def _writing(app: FastAPI, hub: Hub) -> None:
    @app.post("/api/repos/create")
    async def create(request: Request):
        asked = await request.json()
        name = f"{asked['organization'] or 'me'}/{asked['name']}"
        url = {"url": f"{hub.address}/{name}"}
        if name in hub.repos:
            return JSONResponse(url | {"error": "You already created this model repo"}, 409)
        hub.repos[name] = Repository(asked.get("visibility") == "private" or bool(asked.get("private")))
        return url

    @app.post("/api/validate-yaml")
    async def validate(request: Request):
        content = (await request.json())["content"]
        return {"errors": [], "warnings": [] if content.startswith("---\n") else [{"message": "empty metadata"}]}


def _committing(app: FastAPI, hub: Hub) -> None:
    @app.post("/api/models/{owner}/{name}/preupload/{revision}")
    async def preupload(request: Request):
        paths = [file["path"] for file in (await request.json())["files"]]
        modes = {path: "lfs" if path.endswith(LARGE) else "regular" for path in paths}
        return {"files": [{"path": path, "uploadMode": modes[path], "shouldIgnore": False} for path in paths]}

    @app.post("/{owner}/{name}.git/info/lfs/objects/batch")
    async def batch(request: Request):
        objects = (await request.json())["objects"]
        actions = {o["oid"]: {"upload": {"href": f"{hub.address}/lfs/{o['oid']}", "header": {}}} for o in objects}
        return {"transfer": "basic", "objects": [{**o, "actions": actions[o["oid"]]} for o in objects]}

    @app.put("/lfs/{oid}")
    async def upload(oid: str, request: Request):
        data = await request.body()
        if hashlib.sha256(data).hexdigest() != oid:
            return Response(status_code=400)
        hub.large[oid] = data
        return Response()

    @app.post("/api/models/{owner}/{name}/commit/{revision}")
    async def commit(owner: str, name: str, request: Request):
        if (repo := hub.repos.get(f"{owner}/{name}")) is None:
            raise Missing("RepoNotFound")
        files = dict(repo.files)
        for line in (await request.body()).splitlines():
            match json.loads(line):
                case {"key": "file", "value": value}:
                    files[value["path"]] = base64.b64decode(value["content"])
                case {"key": "lfsFile", "value": value}:
                    files[value["path"]] = hub.large[value["oid"]]
                case {"key": "deletedFile", "value": value}:
                    del files[value["path"]]
        repo.commits.append(files)
        url = f"{hub.address}/{owner}/{name}/commit/{repo.sha()}"
        return {"success": True, "commitOid": repo.sha(), "commitUrl": url}


def _reading(app: FastAPI, hub: Hub) -> None:
    @app.get("/api/models/{owner}/{name}")
    @app.get("/api/models/{owner}/{name}/revision/{revision}")
    async def info(owner: str, name: str, request: Request, revision: str = "main"):
        sha, files = hub.seen(request, repo := f"{owner}/{name}", revision)
        return {"id": repo, "modelId": repo, "sha": sha, "siblings": [{"rfilename": file} for file in files]}

    @app.get("/api/models/{owner}/{name}/tree/{revision}")
    async def tree(owner: str, name: str, revision: str, request: Request):
        files = hub.seen(request, f"{owner}/{name}", revision)[1]
        return [{"type": "file", "path": n, "size": len(data), "oid": git_hash(data)} for n, data in files.items()]

    @app.api_route("/{owner}/{name}/resolve/{revision}/{path:path}", methods=["GET", "HEAD"])
    async def resolve(owner: str, name: str, revision: str, path: str, request: Request):
        sha, files = hub.seen(request, f"{owner}/{name}", revision)
        if path not in files:
            raise Missing("EntryNotFound")
        data = files[path]
        headers = {"X-Repo-Commit": sha, "ETag": f'"{git_hash(data)}"', "Content-Length": str(len(data))}
        if path.endswith(LARGE):
            headers |= {"X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Linked-Size": str(len(data))}
        return Response(data if request.method == "GET" else b"", headers=headers)


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A hub that answers on a free port of loopback."""
    hub = Hub()
    config = uvicorn.Config(make_app(hub), host="127.0.0.1", port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    hub.address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield hub
    finally:
        server.should_exit = True
        thread.join(timeout=10)
