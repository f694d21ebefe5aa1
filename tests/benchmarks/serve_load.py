"""`moeir serve` under load beside one `Searcher` in a loop, and its memory: `python -m tests.benchmarks.serve_load --index IDX …`.

Connections stay open and send one query after another, for some seconds or until so many requests; all that is printed is measured. The
clients run on the same processor as the server, in a process of their own; what one request of theirs costs there is printed, too.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import moeir

LOOP = """
import json, sys, time, moeir
queries, seconds = json.load(open(sys.argv[1])), float(sys.argv[2])
searcher = moeir.open_index(sys.argv[3:]) if len(sys.argv) > 4 else moeir.open_index(sys.argv[3])
searcher.search(queries[:32]), [searcher.search([query]) for query in queries[:16]]
taken, start = [], time.perf_counter()
while time.perf_counter() - start < seconds:
    before = time.perf_counter()
    searcher.search([queries[len(taken) % len(queries)]])
    taken.append(time.perf_counter() - before)
print(json.dumps([taken, time.perf_counter() - start]))
"""


class Connection:
    """An open connection that sends requests."""

    async def open(self, port: int) -> "Connection":
        """Connect to the server."""
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        return self

    async def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The body of the answer; AssertionError for any status but 200."""
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        length = int(re.findall(rb"content-length: (\d+)", answer)[0])
        content = await self.reader.readexactly(length)
        assert answer.startswith(b"HTTP/1.1 200"), (answer, content)
        return content


async def run_load(port: int, queries: list[str], connections: int, seconds: float, requests: int) -> tuple[list[float], float, list[str]]:
    """Seconds of each request, of all together, and the server's memory after each 10,000 requests."""
    taken: list[float] = []
    memory: list[str] = []
    bodies = [json.dumps({"query": query}).encode() for query in queries]

    async def note_memory() -> None:
        text = (await (await Connection().open(port)).ask("GET", "/metrics")).decode()
        memory.append(f"{len(taken):,} requests: {int(re.findall(r'process_resident_memory_bytes (.*)', text)[0]) / 1e6:.1f} MB")

    async def run_connection(first: int) -> None:
        connection, number = await Connection().open(port), first
        while time.perf_counter() - start < seconds and len(taken) < requests:
            before = time.perf_counter()
            await connection.ask("POST", "/search", bodies[number % len(bodies)])
            taken.append(time.perf_counter() - before)
            number += connections
            if len(taken) % 10_000 == 0:
                await note_memory()

    start = time.perf_counter()
    await note_memory()
    await asyncio.gather(*(run_connection(number) for number in range(connections)))
    await note_memory()
    return taken, time.perf_counter() - start, memory


def describe(name: str, taken: list[float], seconds: float) -> float:
    """Print what was measured and return the queries per second."""
    latencies = ", ".join(f"p{share} {1000 * np.percentile(taken, share):.1f}" for share in (50, 95, 99))
    print(f"{name}: {len(taken):,} queries in {seconds:.1f} s, {len(taken) / seconds:.1f} queries/s, {latencies} ms", flush=True)
    return len(taken) / seconds


def main() -> None:
    """Measure, in turns: the loop, the server, the loop again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--index", nargs="+", required=True)
    parser.add_argument("--queries", required=True)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--requests", type=int, default=10**9)
    parser.add_argument("--no-loop", action="store_true")
    arguments, flags = parser.parse_known_args()
    queries = [text.content for text in moeir.read_texts(arguments.queries)]
    Path("/tmp/serve-load-queries.json").write_text(json.dumps(queries))

    def run_loop() -> float:
        command = [sys.executable, "-c", LOOP, "/tmp/serve-load-queries.json", str(arguments.seconds / 3), *arguments.index]
        return describe("one Searcher in a loop", *json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))

    rates = [] if arguments.no_loop else [run_loop()]
    index = [word for path in arguments.index for word in ("--index", path)]
    command = [sys.executable, "-m", "moeir", "serve", *index, "--port", "0", *flags]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        port = int(next(found[0] for line in server.stderr if (found := re.findall(r"http://127\.0\.0\.1:(\d+)/", line))))
        asyncio.run(run_load(port, queries, arguments.connections, 3.0, 10**9))
        own = time.process_time()
        taken, seconds, memory = asyncio.run(run_load(port, queries, arguments.connections, arguments.seconds, arguments.requests))
        own = time.process_time() - own
        rate = describe(f"moeir serve, {arguments.connections} connections", taken, seconds)
        print(f"clients: {1000 * own / len(taken):.2f} ms of processor a request; memory: {'; '.join(memory)}", flush=True)
    finally:
        server.terminate()
        server.wait()
    if rates:
        rates.append(run_loop())
        print(f"the server answers {rate / np.mean(rates):.2f} times as many queries a second as the loop")


if __name__ == "__main__":
    main()
