"""A stand-in for the Hugging Face Hub: what huggingface_hub asks for to make a repository, commit files, and download."""

import base64
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

TOKEN = "hf_a_token_of_anna"
Answer = tuple[int, dict[str, str], bytes]


@dataclass
class Fault:
    """What goes wrong with the next `times` requests of a method whose path matches: a status, `close` or `flip` within the body, `silent`,
    or other bytes."""

    method: str
    path: str
    kind: int | str | bytes
    times: int = 1


@dataclass
class StoredRepository:
    """The commits of a repository, oldest first: the content of each file by name."""

    private: bool
    commits: list[dict[str, bytes]] = field(default_factory=lambda: [{".gitattributes": b"*.npy filter=lfs\n"}])

    def commit_name(self, number: int) -> str:
        return hashlib.sha1(repr([number, sorted(self.commits[number].items())]).encode()).hexdigest()

    def find(self, revision: str) -> int | None:
        """The number of the commit that is the end of the main branch, or has this name."""
        names = [self.commit_name(number) for number in range(len(self.commits))]
        return len(names) - 1 if revision == "main" else names.index(revision) if revision in names else None


@dataclass
class StandIn:
    """The state of the stand-in, its address, the faults to come, and what it was sent and asked for."""

    address: str = ""
    repositories: dict[str, StoredRepository] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def fail(self, method: str, path: str, kind: int | str | bytes, times: int = 1) -> None:
        self.faults.append(Fault(method, path, kind, times))

    def files(self, repository: str) -> dict[str, bytes]:
        """The files of the main branch."""
        return self.repositories[repository].commits[-1]

    def next_fault(self, method: str, path: str) -> int | str | bytes | None:
        for fault in self.faults:
            if fault.times and fault.method == method and re.search(fault.path, path):
                fault.times -= 1
                return fault.kind
        return None


def as_json(value: Any, status: int = 200) -> Answer:
    return status, {"Content-Type": "application/json"}, json.dumps(value).encode()


def error(status: int, code: str = "") -> Answer:
    return status, {"X-Error-Code": code, "X-Error-Message": code} if code else {}, b'{"error": "refused"}'


class Handler(BaseHTTPRequestHandler):
    """One request; `state` is set by `serve`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a header waits no 40 ms for its body
    state: StandIn

    def log_message(self, *_: object) -> None:
        pass

    def handle_any(self) -> None:
        path, body = unquote(urlsplit(self.path).path), b""
        self.state.requests.append(f"{self.command} {path}")
        fault = self.state.next_fault(self.command, path)
        length = int(self.headers.get("Content-Length") or 0)
        if fault == "close" and self.command != "GET":
            self.state.bodies.append(self.rfile.read(length // 2))
            self.close_connection = True
            return
        if fault == "silent":
            self.state.ended.wait(60)
            self.close_connection = True
            return
        body = self.read_chunks() if self.headers.get("Transfer-Encoding") == "chunked" else self.rfile.read(length)
        self.state.bodies.append(body)
        other = (200, {"Content-Type": "application/json"}, fault) if isinstance(fault, bytes) else None
        self.send(error(fault) if isinstance(fault, int) else other or self.answer(path, body), fault)

    do_GET = do_HEAD = do_POST = handle_any

    def read_chunks(self) -> bytes:
        content = b""
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def send(self, answer: Answer, fault: int | str | bytes | None) -> None:
        status, headers, body = answer
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault == "flip":
            body = body[:-1] + bytes([body[-1] ^ 1])
        self.wfile.write(body[: len(body) // 2] if fault == "close" else body)
        self.close_connection = self.close_connection or fault == "close"

    def answer(self, path: str, body: bytes) -> Answer:
        for method, pattern, action in ROUTES:
            if (match := re.fullmatch(pattern, path)) and self.command in method:
                return action(self, body, *match.groups())
        return error(404)

    @property
    def may_write(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def find_repository(self, name: str) -> StoredRepository | None:
        """A repository that the request may see."""
        repository = self.state.repositories.get(name)
        return None if repository is not None and repository.private and not self.may_write else repository

    def create(self, body: bytes) -> Answer:
        fields = json.loads(body)
        name = f"{fields['organization']}/{fields['name']}"
        if not self.may_write:
            return error(401)
        if name in self.state.repositories:
            return as_json({"url": f"{self.state.address}/{name}", "error": "You already created this model repo"}, 409)
        self.state.repositories[name] = StoredRepository(fields.get("visibility") == "private")
        return as_json({"url": f"{self.state.address}/{name}"})

    def info(self, body: bytes, name: str, revision: str | None) -> Answer:
        if (repository := self.find_repository(name)) is None:
            return error(404, "RepoNotFound") if self.may_write else error(401)
        if (number := repository.find(revision or "main")) is None:
            return error(404, "RevisionNotFound")
        files = [{"rfilename": file, "size": len(content)} for file, content in repository.commits[number].items()]
        return as_json({"id": name, "sha": repository.commit_name(number), "siblings": files, "private": repository.private, "tags": []})

    def preupload(self, body: bytes, name: str) -> Answer:
        if not self.may_write:
            return error(401)
        names, files = [one["path"] for one in json.loads(body)["files"]], self.state.files(name)
        oids = {path: hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() for path, content in files.items()}  # git's
        answers = [{"path": path, "uploadMode": "regular", "shouldIgnore": False, "oid": oids.get(path)} for path in names]
        return as_json({"files": answers})

    def validate(self, body: bytes) -> Answer:
        licence = re.search("^license: (.*)$", json.loads(body)["content"], re.MULTILINE)
        if licence and licence[1] not in ("apache-2.0", "mit", "other"):
            return as_json({"errors": [{"message": f'"license" must be one of [apache-2.0, mit, other], found {licence[1]}'}]}, 400)
        return as_json({"warnings": [], "errors": []})

    def commit(self, body: bytes, name: str) -> Answer:
        if not self.may_write:
            return error(401)
        repository = self.state.repositories[name]
        files = dict(repository.commits[-1])
        for line in body.splitlines():
            key, value = json.loads(line).values()
            if key == "header" and value.get("parentCommit") not in (None, repository.commit_name(len(repository.commits) - 1)):
                return error(412)
            if key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
                self.state.bodies.append(files[value["path"]])
            elif key == "deletedFile":
                del files[value["path"]]
        repository.commits.append(files)
        commit = repository.commit_name(len(repository.commits) - 1)
        return as_json({"commitUrl": f"{self.state.address}/{name}/commit/{commit}", "commitOid": commit, "success": True})

    def resolve(self, body: bytes, name: str, revision: str, file: str) -> Answer:
        if (repository := self.find_repository(name)) is None:
            return error(404, "RepoNotFound")
        if (number := repository.find(revision)) is None:
            return error(404, "RevisionNotFound")
        if (content := repository.commits[number].get(file)) is None:
            return error(404, "EntryNotFound")
        etag = hashlib.sha256(content).hexdigest()
        return self.ranged(content, {"X-Repo-Commit": repository.commit_name(number), "ETag": f'"{etag}"'})

    def ranged(self, content: bytes, headers: dict[str, str]) -> Answer:
        first = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        if first is None:
            return 200, headers, content
        part = content[int(first[1]) :]
        return 206, headers | {"Content-Range": f"bytes {first[1]}-{len(content) - 1}/{len(content)}"}, part


REPOSITORY = r"([\w.-]+/[\w.-]+)"
ROUTES = [
    ("POST", "/api/repos/create", Handler.create),
    ("GET", f"/api/models/{REPOSITORY}(?:/revision/(.+))?", Handler.info),
    ("POST", f"/api/models/{REPOSITORY}/preupload/main", Handler.preupload),
    ("POST", "/api/validate-yaml", Handler.validate),
    ("POST", f"/api/models/{REPOSITORY}/commit/main", Handler.commit),
    ("GET HEAD", f"/{REPOSITORY}/resolve/([^/]+)/(.+)", Handler.resolve),
]


def connect(patch: pytest.MonkeyPatch, address: str) -> None:
    """Lead huggingface_hub, which reads its environment when it is imported, to a stand-in, with its token and without waiting."""
    from huggingface_hub import close_session, constants, file_download
    from huggingface_hub.utils import _http

    close_session()  # a client keeps the limits of the test that opened it

    settings = {"ENDPOINT": address, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}
    settings |= {"HUGGINGFACE_CO_URL_TEMPLATE": f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"}
    for name, value in settings.items():
        patch.setattr(constants, name, value)
    without_waiting = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None})
    for module in (_http, file_download):
        patch.setattr(module, "time", without_waiting)
    patch.setenv("HF_TOKEN", TOKEN)


@contextmanager
def serve() -> Iterator[StandIn]:
    """A stand-in on a free port of this machine."""
    state = StandIn()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OwnHandler", (Handler,), {"state": state}))
    server.daemon_threads = True
    state.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield state
    finally:
        state.ended.set()
        server.shutdown()
        server.server_close()
