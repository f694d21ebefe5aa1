"""`moeir serve` under load, and its memory: `python -m tests.benchmarks.serve_load --index IDX …`.

Connections stay open and send one query after another, for some seconds or until so many requests; all that is printed is measured. The
clients run on the same processor as the server, in a process of their own; what one request of theirs costs there is printed, too.
"""

import asyncio
import json
import re
import subprocess
import sys
import time

import numpy as np

import moeir
from tests.benchmarks.rounds import make_parser


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


def main() -> None:
    """Print queries a second, latencies, what a request costs the clients, and the server's memory."""
    parser = make_parser(__doc__, connections=64, seconds=60, requests=10**9)
    parser.add_argument("--index", nargs="+", required=True)
    parser.add_argument("--queries", required=True)
    arguments, flags = parser.parse_known_args()
    queries = [text.content for text in moeir.read_texts(arguments.queries)]
    index = [word for path in arguments.index for word in ("--index", path)]
    command = [sys.executable, "-m", "moeir", "serve", *index, "--port", "0", *flags]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        port = int(next(match[0] for line in server.stderr if (match := re.findall(r"http://127\.0\.0\.1:(\d+)/", line))))
        asyncio.run(run_load(port, queries, arguments.connections, 3.0, 10**9))
        own = time.process_time()
        taken, seconds, memory = asyncio.run(run_load(port, queries, arguments.connections, arguments.seconds, arguments.requests))
        own = time.process_time() - own
    finally:
        server.terminate()
        server.wait()
    latencies = ", ".join(f"p{share} {1000 * np.percentile(taken, share):.1f}" for share in (50, 95, 99))
    print(f"{len(taken):,} queries in {seconds:.1f} s, {len(taken) / seconds:.1f} queries/s, {latencies} ms")
    print(f"clients: {1000 * own / len(taken):.2f} ms of processor a request; memory: {'; '.join(memory)}")


if __name__ == "__main__":
    main()
