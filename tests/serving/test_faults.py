"""A server under wrong requests, too many of them, replaced files, signals, and slow and broken clients."""

import json
import logging
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from moeir.serving.requests import SearchRequest
from moeir.stages import serve as serve_stage
from tests.conftest import run_in_process, run_moeir
from tests.serving.server_process import ROOT, fetch, run_server

WRONG: list[tuple[Any, str]] = [
    ([], 'expected a JSON object such as {"query": "owls"}, found []'),
    ({}, "needs --query"),
    ({"query": []}, '"query": expected one or more, found none'),
    ({"query": " "}, "expected words"),
    ({"query": ["owl", ""]}, "expected words"),
    ({"query": "owl\0"}, "without zero bytes"),
    ({"query": "\ud800"}, "half a character"),
    ({"query": {"q1": "owl"}}, "--query: expected one plain value, found dict"),
    ({"query": "o" * 10_001}, "at most 10,000 characters, found 10,001"),
    ({"query": ["owl"] * 10_000}, "--query: expected at most 256 (--max-queries of the server), found 10,000"),
    ({"query": "owl", "k": 0}, "--k 0: expected at least 1 (Documents of each list)"),
    ({"query": "owl", "k": 1001}, "--k 1001: expected 1 to 1000 (--depth of the server)"),
    ({"query": "owl", "k": True}, "--k: expected a whole number, found 'true'"),
    ({"query": "owl", "k": 1.5}, "--k: expected a whole number, found '1.5'"),
    ({"query": "owl", "k": [1, 2]}, "--k: expected one value, found 2"),
    ({"query": "owl", "k": 10**30}, "--k"),
    ({"query": ["owl"] * 100, "k": 1000}, "--k: 1,000 documents for each of 100 queries; expected at most 20,000 for all"),
    ({"query": "owl", "explain": True, "k": 257}, "--explain: 257 documents for each of 1 queries; expected at most 256 for all"),
    ({"query": "owl", "explain": "perhaps"}, "--explain: expected true or false, found 'perhaps'"),
    ({"query": "owl", "document": ["owl"]}, "--document needs --explain"),
    ({"query": "owl", "explain": True, "document": ["none"]}, "--document none: the index has no such document"),
    (
        {"query": "owl", "explain": True, "document": ["cat"], "filter_ids": ["owl"]},
        "--document cat: --filter-ids leave no such document",
    ),
    ({"query": "owl", "experts": ["lexical"]}, '"experts": there is no such field'),
    ({"query": "owl", "expert": "sparse"}, "--expert sparse: the index has lexical, local, global"),
    ({"query": "owl", "expert": []}, '"expert": expected one or more, found none'),
    ({"query": "owl", "fuse": "summ"}, "fusion has no 'summ'"),
    ({"query": "owl", "fuse": "rrf:constant=x"}, "constant"),
    ({"query": "owl", "fuse": "shutil:rmtree"}, "--fuse shutil:rmtree: expected a method that moeir variants fusion lists"),
    ({"query": "owl", "filter_ids": []}, '"filter_ids": expected one or more, found none'),
    ({"query": "owl", "filter": ["none"]}, "--filter-ids: none of its ids is in the index"),
    ({"query": "owl", "filter": ["two words"]}, "id with white space"),
]


@pytest.fixture
def client(index: Path, toy: Path, serve: Any) -> Any:
    return serve(index=index, corpus=toy / "corpus.jsonl")


BODIES = [
    (b'{"query": "owl"', 400, "the body"), (b'{"query": "\xff"}', 400, "the body is not UTF-8"), (b"", 400, "the body"),
    (b"[" * 100_000, 400, "the body"), (b'{"query": "' + b"o" * 10_000_000 + b'"}', 413, "at most 1,048,576 bytes"),
]  # fmt: skip


def test_a_wrong_request_is_refused_in_the_words_of_the_command_line_without_a_path_or_a_traceback(
    client: Any, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = ("/health", "/metrics", "/openapi.json", "/documents/..%2f..%2fetc%2fpasswd", "/nothing", "/search")
    replies = [client.get(path) for path in paths]
    assert [reply.status_code for reply in replies] == [200, 200, 200, 404, 404, 405]
    assert replies[-1].json() == {"error": "GET is not for this path; see /openapi.json"}
    for body, status, words in [*((json.dumps(body), 400, words) for body, words in WRONG), *BODIES]:
        replies.append(client.post("/search", content=body, headers={"content-type": "application/json; charset=utf-8"}))
        assert replies[-1].status_code == status and replies[-1].json().keys() == {"error"}, body[:50]
        assert words in replies[-1].json()["error"], body[:50]
    assert client.post("/search", json={"query": "owl"}).status_code == 200

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(f"{index} is on fire")

    monkeypatch.setattr(type(client.service.served.searcher), "search_runs", fail)
    replies.append(client.post("/search", json={"query": "owl"}))
    assert replies[-1].status_code == 500 and replies[-1].json() == {"error": "an error that nobody foresaw; the server's log has it"}
    text = "".join(reply.text + str(reply.headers) for reply in replies)
    assert str(index) not in text and str(index.parent) not in text and str(ROOT) not in text and "Traceback" not in text
    assert all(reply.headers["x-content-type-options"] == "nosniff" for reply in replies)


def test_other_sites_cannot_ask_in_a_visitors_name(index: Path, serve: Any) -> None:
    client = serve(hosts=serve_stage.IN_HEADERS, index=index, allow_origin=("https://friend.example",))
    ask = {"content": b'{"query": "owl"}', "headers": {"content-type": "text/plain", "host": "localhost:8000"}}
    assert client.post("/search", **ask).status_code == 415, "a form of another site can send this without being asked"
    for hosts, status in ((("localhost:8000", "127.0.0.1", "[::1]:8000"), 200), (("evil.example", "localhost.evil.example"), 400)):
        assert [client.get("/health", headers={"host": host}).status_code for host in hosts] == [status] * len(hosts)
    for origin, allowed in (("https://friend.example", "https://friend.example"), ("https://evil.example", None)):
        reply = client.get("/health", headers={"host": "localhost", "origin": origin})
        assert reply.headers.get("access-control-allow-origin") == allowed
    asked = {"host": "localhost", "origin": "https://friend.example", "access-control-request-method": "POST"}
    assert client.options("/search", headers=asked | {"access-control-request-headers": "content-type"}).status_code == 200
    assert "access-control-allow-origin" not in serve(index=index).get("/health", headers={"origin": "https://friend.example"}).headers


@pytest.fixture
def held(index: Path, serve: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, threading.Event, threading.Event]]:
    """A server whose searches tell that they have begun and wait for an event, with a queue of three queries and time-outs of a second."""
    client, begun, go = serve(index=index, queue=3, timeout=1.0), threading.Event(), threading.Event()
    answer = client.service.answer

    def wait_and_answer(batch: list[SearchRequest]) -> Any:
        begun.set()
        go.wait(30)
        return answer(batch)

    monkeypatch.setattr(client.service, "answer", wait_and_answer)
    yield client, begun, go
    go.set()


def test_a_full_queue_refuses_and_the_queue_is_answered_all_the_same(held: tuple[Any, threading.Event, threading.Event]) -> None:
    client, begun, go = held
    client.service.limits = client.service.limits._replace(seconds=30.0)
    with ThreadPoolExecutor(8) as threads:
        running = threads.submit(client.post, "/search", json={"query": "owl"})
        wait_until(begun.is_set)
        queued = [threads.submit(client.post, "/search", json={"query": "owl"}) for _ in range(3)]
        wait_until(lambda: client.service.waiting == 3)
        refused = client.post("/search", json={"query": "owl"})
        assert refused.status_code == 503 and "3 queries wait; expected at most 3 (--queue of the server)" in refused.json()["error"]
        assert client.get("/health").json()["waiting"] == 3
        go.set()
        assert [one.result().status_code for one in (running, *queued)] == [200] * 4
    assert client.post("/search", json={"query": ["owl"] * 4}).status_code == 200, "what is longer than the queue is taken if nothing waits"


def test_a_late_answer_is_a_time_out_and_the_next_request_is_answered(held: tuple[Any, threading.Event, threading.Event]) -> None:
    client, _, go = held
    late = client.post("/search", json={"query": "owl"})
    assert late.status_code == 504 and late.json() == {"error": "no answer in time (--timeout of the server)"}
    go.set()
    assert client.post("/search", json={"query": "owl"}).status_code == 200
    statuses = re.findall(r'moeir_requests_total{route="/search",status="(\d+)"} 1\n', client.get("/metrics").text)
    assert statuses == ["200", "504"]


def wait_until(condition: Any) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen within ten seconds")


def test_metrics_are_lines_that_prometheus_reads(client: Any) -> None:
    client.post("/search", json={"query": ["owl", "cat"]})
    lines = client.get("/metrics").text.splitlines()
    assert all(re.fullmatch(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [0-9.e+-]+', line) for line in lines)
    values = {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}
    assert values["moeir_queries_total"] == 2 and values["moeir_batches_total"] == 1 and values["process_resident_memory_bytes"] > 2**20
    assert values['moeir_search_seconds_bucket{le="+Inf"}'] == values["moeir_search_seconds_count"] == 1
    assert values['moeir_requests_total{route="/search",status="200"}'] == 1


def test_the_interface_that_is_described_is_the_one_that_there_is(client: Any) -> None:
    described = client.get("/openapi.json").json()
    fields = {name for name in SearchRequest.__dataclass_fields__}
    assert set(described["components"]["schemas"]["Request"]["properties"]) == fields
    for path in described["paths"]:
        client.get(path.replace("{id}", "owl"))
    served = set(re.findall(r'route="([^"]+)"', client.get("/metrics").text)) - {"/openapi.json"}
    assert {path.replace("{id}", "{name:path}") for path in described["paths"]} == served
    reply = client.post("/search", json={"query": "owl", "lists": True, "texts": True, "explain": True}).json()
    schemas = described["components"]["schemas"]
    assert reply.keys() == schemas["Answer"]["properties"].keys()
    assert reply["results"][0].keys() == schemas["Answer"]["properties"]["results"]["items"]["properties"].keys()
    assert reply["results"][0]["hits"][0].keys() == schemas["Hit"]["properties"].keys()


@pytest.mark.parametrize("flags", [(), ("--mcp",)])
def test_without_its_package_serve_says_what_to_install(flags: tuple[str, ...], bm25_index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_stage.importlib.util, "find_spec", lambda name: None)
    result = run_in_process("serve", "--index", bm25_index, *flags)
    package, extra = ("mcp", "mcp") if flags else ("uvicorn", "serve")
    assert (result.code, result.stderr) == (2, f"error: serve needs the package {package}; pip install 'moeir[{extra}]'\n")


@pytest.fixture
def two_indexes(toy: Path, tmp_path: Path) -> tuple[Path, Path]:
    """BM25 of all toy documents, and of the first half of them."""
    lines = (toy / "corpus.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    for name, part in (("whole", lines), ("half", lines[:6])):
        (tmp_path / f"{name}.jsonl").write_text("".join(part), encoding="utf-8")
        run_moeir("index", "--corpus", tmp_path / f"{name}.jsonl", "--engine", "bm25", "--output", tmp_path / name)
    return tmp_path / "whole", tmp_path / "half"


def replace_folder(target: Path, source: Path) -> None:
    """Put a copy of an index into the place of another one, as moeir does: by a rename."""
    copy = target.with_name(f"{target.name}.copy")
    shutil.copytree(source, copy)
    target.rename(target.with_name(f"{target.name}.old"))
    copy.rename(target)
    shutil.rmtree(target.with_name(f"{target.name}.old"))


def test_an_index_that_is_replaced_under_load_is_served_whole_or_not_at_all(
    two_indexes: tuple[Path, Path], tmp_path: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moeir.serving.service.POLL_SECONDS", 0.02)
    queries = ["owl hunts night", "cat sleeps", "moon sea", "dog"]
    expected = {}
    for name, path in zip(("whole", "half"), two_indexes, strict=True):
        expected[name] = serve(index=path).post("/search", json={"query": queries, "k": 12}).json()["results"]
    assert expected["whole"] != expected["half"]
    served = tmp_path / "served"
    shutil.copytree(two_indexes[0], served)
    client, ignoring, stop = serve(index=served, reload=True), serve(index=served), threading.Event()

    def load() -> list[Any]:
        replies = []
        while not stop.is_set():
            replies.append(client.post("/search", json={"query": queries, "k": 12}).json())
        return replies

    with ThreadPoolExecutor(4) as threads:
        loads = [threads.submit(load) for _ in range(4)]
        versions = [client.get("/health").json()["version"]]
        for number in range(6):
            replace_folder(served, two_indexes[(number + 1) % 2])
            wait_until(lambda: client.get("/health").json()["version"] != versions[-1])
            versions.append(client.get("/health").json()["version"])
        stop.set()
    replies = [reply for one in loads for reply in one.result()]
    contents = {version: ("whole", "half")[number % 2] for number, version in enumerate(versions)}
    assert len(contents) == 7
    assert all(reply["results"] == expected[contents[reply["version"]]] for reply in replies)
    assert len(Counter(reply["version"] for reply in replies)) > 2
    assert ignoring.post("/search", json={"query": queries, "k": 12}).json()["results"] == expected["whole"]


def test_a_damaged_index_in_its_place_is_not_served(
    two_indexes: tuple[Path, Path], serve: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("moeir.serving.service.POLL_SECONDS", 0.02)
    monkeypatch.setattr(logging.getLogger("moeir"), "propagate", True)
    whole, half = two_indexes
    client = serve(index=whole, reload=True)
    before = client.post("/search", json={"query": "owl"}).text
    file = next(path for path in half.rglob("*.npy"))
    file.write_bytes(file.read_bytes()[:-3] + b"xyz")
    replace_folder(whole, half)
    wait_until(lambda: "cannot open what is on disk now" in caplog.text)
    assert client.post("/search", json={"query": "owl"}).text == before
    shutil.rmtree(whole)
    time.sleep(0.2)
    assert client.post("/search", json={"query": "owl"}).text == before


def test_sigterm_finishes_what_runs_and_takes_nothing_new(bm25_index: Path) -> None:
    with run_server(bm25_index) as (process, port), ThreadPoolExecutor(4) as threads, socket.create_connection(("127.0.0.1", port)) as slow:
        body = json.dumps({"query": "owl"}).encode()
        head = f"POST /search HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        slow.sendall(head.encode() + body[:5])
        running = [threads.submit(fetch, port, "/search", {"query": ["owl hunts mice"] * 256, "k": 12, "lists": True}) for _ in range(3)]
        time.sleep(0.5)
        process.terminate()
        with pytest.raises(OSError, match=r"refused|reset"):
            wait_until(lambda: fetch(port) is None)
        slow.sendall(body[5:])
        answer = b"".join(iter(lambda: slow.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"}\n")
        assert all(len(one.result()["results"]) == 256 for one in running)
        process.join(30)
        assert process.exitcode in (0, -signal.SIGTERM)


def test_slow_and_broken_clients_do_not_hinder_others_and_a_killed_server_can_be_started_again_at_its_port(bm25_index: Path) -> None:
    with run_server(bm25_index, "--timeout", 2) as (process, port):
        head = b"POST /search HTTP/1.1\r\nhost: localhost\r\n"
        pieces = [b"", b"POST", head, b"\x00\xff\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"]
        head += b"content-type: application/json\r\n"
        pieces += [head + b"content-length: 1000\r\n\r\n{", head + b"transfer-encoding: chunked\r\n\r\nzz\r\n"]
        pieces.append(b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 200_000 + b"\r\n\r\n")
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(8) for _ in pieces]
        for number, client in enumerate(clients):
            client.sendall(pieces[number % len(pieces)])
        for client in clients[::2]:
            client.close()
        started = time.monotonic()
        assert len(fetch(port, "/search", {"query": "owl"})["results"]) == 1
        assert time.monotonic() - started < 2
        clients[5].settimeout(30)
        assert b" 408 " in clients[5].recv(65536), "a body that does not come is not waited for"
        for client in clients:
            client.close()
        assert fetch(port)["waiting"] == 0 and process.is_alive()
        process.kill()
        process.join()
        command = ("serve", "--index", bm25_index, "--port", port)
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", port))
            taken.listen()
            refused = run_in_process(*command)
        assert refused.code == 2 and f"--host 127.0.0.1 --port {port}: Address already in use" in refused.stderr
    with run_server(bm25_index, "--port", port) as (_, again):
        assert again == port and fetch(port)["status"] == "ok"


def test_an_agent_finds_documents_and_reads_them(bm25_index: Path, toy: Path) -> None:
    pytest.importorskip("mcp", reason="needs the extra mcp")
    arguments = {"search": {"query": "owl", "k": 1}, "get_document": {"document_id": "owl"}}
    calls = [("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}})]
    calls += [("tools/list", {}), *(("tools/call", {"name": name, "arguments": given}) for name, given in arguments.items())]
    calls += [("tools/call", {"name": "search", "arguments": {"query": "owl", "k": 0}})]
    command = [sys.executable, "-m", "moeir", "serve", "--index", str(bm25_index), "--corpus", str(toy / "corpus.jsonl"), "--mcp"]
    answers = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdin is not None and process.stdout is not None
        for number, (method, params) in enumerate(calls):
            process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n")
            if not number:
                process.stdin.write(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}) + "\n")
            process.stdin.flush()
            answers.append(json.loads(process.stdout.readline()))
        process.stdin.close()
        assert process.wait(60) == 0
    assert [one["id"] for one in answers] == [0, 1, 2, 3, 4]
    tools = {tool["name"]: tool["inputSchema"]["properties"] for tool in answers[1]["result"]["tools"]}
    assert tools.keys() == {"search", "get_document"} and tools["search"]["k"]["default"] == 10
    texts = [one["result"]["content"][0]["text"] for one in answers[2:]]
    (hit,) = json.loads(texts[0])
    assert hit["document"] == "owl" and "night" in hit["text"] and "night" in texts[1]
    assert texts[2].startswith("error: --k 0: expected at least 1")
