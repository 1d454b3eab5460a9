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
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse

WRITER, READER = "hf_writer_token", "hf_reader_token"


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
        named = {name: git_hash(data) for name, data in self.commits[number].items()}
        return git_hash(json.dumps([number, named], sort_keys=True).encode())


@dataclass
class Hub:
    """What a hub holds."""

    repos: dict[str, Repository] = field(default_factory=dict)
    address: str = ""

    def seen(self, name: str, revision: str = "main") -> tuple[str, dict[str, bytes]]:
        """The commit hash and files of a branch or commit."""
        if (repo := self.repos.get(name)) is None:
            raise Missing("RepoNotFound")
        by_revision = {repo.sha(number): files for number, files in enumerate(repo.commits)}
        sha = repo.sha() if revision == "main" else revision
        if sha not in by_revision:
            raise Missing("RevisionNotFound")
        return sha, by_revision[sha]


class Missing(Exception):
    """A repository, revision or file that is not there."""


hub, router = Hub(), APIRouter()


def git_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


async def check_token(request: Request, then):
    token = request.headers.get("authorization", "").removeprefix("Bearer ")
    if token not in ("", WRITER, READER):
        said = {"X-Error-Message": "Invalid credentials in Authorization header"}
        return JSONResponse({"error": "Invalid credentials"}, 401, headers=said)
    if request.method == "POST" and "/validate-yaml" not in request.url.path and token != WRITER:
        return JSONResponse({"error": "no right to write"}, 403 if token else 401)
    return await then(request)


def missing(request: Request, error: Missing):
    code = str(error)
    return JSONResponse({"error": code}, 404, headers={"X-Error-Code": code, "X-Error-Message": code})


@router.post("/api/repos/create")
async def create(request: Request):
    asked = await request.json()
    name = f"{asked['organization'] or 'me'}/{asked['name']}"
    url = {"url": f"{hub.address}/{name}"}
    if name in hub.repos:
        return JSONResponse(url | {"error": "You already created this model repo"}, 409)
    hub.repos[name] = Repository(asked.get("visibility") == "private" or bool(asked.get("private")))
    return url


@router.post("/api/validate-yaml")
async def validate(request: Request):
    content = (await request.json())["content"]
    return {"errors": [], "warnings": [] if content.startswith("---\n") else [{"message": "empty metadata"}]}


@router.post("/api/models/{owner}/{name}/preupload/{revision}")
async def preupload(request: Request):
    paths = [file["path"] for file in (await request.json())["files"]]
    return {"files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]}


@router.post("/api/models/{owner}/{name}/commit/{revision}")
async def commit(owner: str, name: str, request: Request):
    repo = hub.repos[f"{owner}/{name}"]
    files = dict(repo.files)
    for line in (await request.body()).splitlines():
        match json.loads(line):
            case {"key": "file", "value": value}:
                files[value["path"]] = base64.b64decode(value["content"])
            case {"key": "deletedFile", "value": value}:
                del files[value["path"]]
    repo.commits.append(files)
    url = f"{hub.address}/{owner}/{name}/commit/{repo.sha()}"
    return {"success": True, "commitOid": repo.sha(), "commitUrl": url}


@router.get("/api/models/{owner}/{name}")
@router.get("/api/models/{owner}/{name}/revision/{revision}")
async def info(owner: str, name: str, revision: str = "main"):
    sha, files = hub.seen(repo := f"{owner}/{name}", revision)
    return {"id": repo, "modelId": repo, "sha": sha, "siblings": [{"rfilename": file} for file in files]}


@router.get("/api/models/{owner}/{name}/tree/{revision}")
async def tree(owner: str, name: str, revision: str):
    files = hub.seen(f"{owner}/{name}", revision)[1]
    return [{"type": "file", "path": n, "size": len(data), "oid": git_hash(data)} for n, data in files.items()]


@router.api_route("/{owner}/{name}/resolve/{revision}/{path:path}", methods=["GET", "HEAD"])
async def resolve(owner: str, name: str, revision: str, path: str, request: Request):
    sha, files = hub.seen(f"{owner}/{name}", revision)
    if path not in files:
        raise Missing("EntryNotFound")
    data = files[path]
    headers = {"X-Repo-Commit": sha, "ETag": f'"{git_hash(data)}"', "Content-Length": str(len(data))}
    return Response(data if request.method == "GET" else b"", headers=headers)


@contextmanager
def running_hub() -> Iterator[Hub]:
    """The hub, which answers on a free port of loopback."""
    app = FastAPI(exception_handlers={Missing: missing})
    app.middleware("http")(check_token)
    app.include_router(router)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off"))
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
