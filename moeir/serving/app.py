"""The routes of the server: searches, documents, the page, health and metrics. No answer has a path of the machine or a traceback."""

import asyncio
import mmap
import socket
from collections import Counter
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moeir.errors import DataError, UsageError
from moeir.parsing import shorten_message
from moeir.records.texts import parse_json, to_record
from moeir.reporting.html_page import render_page
from moeir.serving.service import Overloaded, SearchService

BROWSER, STATM = Path(__file__).with_name("browser"), Path("/proc/self/statm")  # whose second number are the pages of memory in use
STYLES, SCRIPTS = ("page", "cases", BROWSER / "search"), ("start", "lists", "reasons", BROWSER / "search")
HITS_OF_PAGE, MAX_CONNECTIONS, MAX_BODY_BYTES = 10, 1000, 2**20
MAX_DISCARDED_BYTES = 2**24  # of a body that is too long: clients read the answer only after they have sent it
HEADERS = [(b"cache-control", b"no-store"), (b"referrer-policy", b"no-referrer"), (b"x-content-type-options", b"nosniff")]
STATUS = {UsageError: 400, DataError: 400, ClientDisconnect: 400, Overloaded: 503, TimeoutError: 504}


def build_server(service: SearchService, origins: Sequence[str] = (), hosts: Sequence[str] = ("*",)) -> ASGIApp:
    """The ASGI application; pages of the `origins` may read its answers, and requests name it by one of the `hosts`."""

    async def search(request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "expected a body of the content type application/json")
        record = parse_json(await _read_body(request, service.limits.seconds), "the body")
        return Response(await service.search(record), media_type="application/json")

    async def document(request: Request) -> Response:
        texts, name = service.served.texts, request.path_params["name"]
        if (text := None if texts is None else texts.get(name)) is None:
            raise HTTPException(404, "the server was started without --corpus" if texts is None else f"no document {name!r} has a text")
        return JSONResponse(to_record(text))

    async def health(request: Request) -> Response:
        now = service.served
        facts = {"status": "ok", "version": now.version, "documents": len(now.searcher.ids), "lists": now.lists}
        return JSONResponse(facts | {"waiting": service.waiting})

    async def metrics(request: Request) -> Response:
        values = {**service.counts, "moeir_waiting_queries": service.waiting}
        if STATM.is_file():
            values["process_resident_memory_bytes"] = int(STATM.read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE
        return PlainTextResponse("".join(f"{name} {value:.15g}\n" for name, value in sorted(values.items())))

    async def page(request: Request) -> Response:
        now, shown = service.served, {"experts": {}, "depth": HITS_OF_PAGE, "chunks": {"texts": 2**31}}
        shown |= {
            "runs": now.lists,
            "documents": len(now.searcher.ids),
            "texts": now.texts is not None,
            "explains": service.limits.explains,
        }
        parts = render_page("moeir", shown, template=BROWSER / "search", styles=STYLES, scripts=SCRIPTS, rules=("connect-src 'self'",))
        return HTMLResponse("".join(parts), headers={"content-security-policy": "frame-ancestors 'none'"})

    async def openapi(request: Request) -> Response:
        return Response((BROWSER / "openapi.json").read_bytes(), media_type="application/json")

    paths = {"/": page, "/health": health, "/metrics": metrics, "/openapi.json": openapi, "/documents/{name:path}": document}
    allowed: dict[str, Any] = {"allow_origins": origins, "allow_methods": ["GET", "POST"], "allow_headers": ["content-type"]}
    cors = [Middleware(CORSMiddleware, **allowed)] if origins else []
    trusted = Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    app = Starlette(
        routes=[Route("/search", search, methods=["POST"]), *(Route(path, endpoint) for path, endpoint in paths.items())],
        middleware=[trusted, *cors],
        exception_handlers=dict.fromkeys([HTTPException, *STATUS, 500], _report_problem),
        lifespan=lambda app: service.running(),
    )
    return _count_answers(app, service.counts)


def _count_answers(app: ASGIApp, counts: Counter[str]) -> ASGIApp:
    """The application, its answers counted by route and status, and with the headers of all."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "other")
                counts[f'moeir_requests_total{{route="{route}",status="{message["status"]}"}}'] += 1
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        await app(scope, receive, send_counted)

    return answer


async def _read_body(request: Request, seconds: float) -> str:
    """The body of a request as text; HTTPException if it is too long, too slow, or not UTF-8."""
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                body += part if size <= MAX_BODY_BYTES else b""
                if size > MAX_DISCARDED_BYTES:
                    break
        if size > MAX_BODY_BYTES:
            raise HTTPException(413, f"expected a body of at most {MAX_BODY_BYTES:,} bytes, found more")
        return body.decode()
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {seconds:g} s") from None
    except UnicodeDecodeError:
        raise HTTPException(400, "the body is not UTF-8") from None


async def _report_problem(request: Request, problem: Exception) -> Response:
    if isinstance(problem, HTTPException):
        known = {404: "there is no such path", 405: f"{request.method} is not for this path"}  # in place of the library's words
        is_own = problem.detail != HTTPStatus(problem.status_code).phrase
        detail = problem.detail if is_own else f"{known.get(problem.status_code, problem.detail)}; see /openapi.json"
        return JSONResponse({"error": detail}, problem.status_code, problem.headers)
    status = next((STATUS[kind] for kind in STATUS if isinstance(problem, kind)), 500)
    message = "an error that nobody foresaw; the server's log has it" if status == 500 else str(problem)
    return JSONResponse({"error": shorten_message(message) or "no answer in time (--timeout of the server)"}, status)


def open_listener(host: str, port: int) -> socket.socket:
    """A socket that takes connections at an address; UsageError if it cannot."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=MAX_CONNECTIONS)
    except OSError as problem:
        raise UsageError(f"--host {host} --port {port}: {problem.strerror or problem}; name another") from None


def run_server(app: ASGIApp, listener: socket.socket, seconds: float) -> None:
    """Serve until SIGTERM or SIGINT; what runs then is finished, in at most so many seconds."""
    limits: dict[str, Any] = {"timeout_graceful_shutdown": int(seconds) + 1, "limit_concurrency": MAX_CONNECTIONS}
    quiet: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False}
    uvicorn.Server(uvicorn.Config(app, loop="asyncio", http="h11", ws="none", lifespan="on", **quiet, **limits)).run([listener])
