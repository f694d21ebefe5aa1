"""`moeir serve`: answer searches over HTTP, in a browser or as tools of an agent."""

import importlib.util
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeir.data_sources import is_remote
from moeir.errors import UsageError
from moeir.settings import input_field, option
from moeir.stages.base import COLLAPSE, DEPTH, DEVICE, INFERENCE_DTYPE, THREADS, Stage, is_stream

if TYPE_CHECKING:
    from moeir.serving.service import SearchService

LOOPBACK, IN_HEADERS = ("127.0.0.1", "::1", "localhost"), ("localhost", "127.0.0.1", "[::1]")  # another site's name may lead here, too
HTTP: dict[str, Any] = {"excludes": ("mcp",)}  # of what an agent does not use
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Serve(Stage):
    """Answer searches over HTTP, with a page for a browser; or as tools of an agent. Answers are the lists of moeir search, cut at k."""

    index: tuple[Path, ...] = input_field(
        "index",
        "Output folder of moeir index; repeat the flag for parts of a collection, searched as one, or for BM25 as one more expert.",
    )
    corpus: Path | None = input_field("texts", "The documents, to show their texts.", None)
    model: Path | None = input_field("checkpoint", "The checkpoint of the index, if it has moved; or the same one calibrated.", None)
    rerank: Path | None = input_field("checkpoint", "Checkpoint that scores the first documents again.", None, needs=("corpus",))
    rerank_depth: int = option("Documents that --rerank scores.", 100, minimum=1, maximum=1000, needs=("rerank",))
    depth: int = option("Documents of the lists that are searched and fused, and the largest k of a request.", 1000, **DEPTH)
    collapse: str | None = option(**COLLAPSE)
    prompt: str | None = option("Name of the checkpoint's prompt before queries [default: its query prefix].", None)
    host: str = option("Address to listen at; 0.0.0.0 for whoever can reach this machine.", "127.0.0.1", single_word=True, **HTTP)
    port: int = option("Port to listen at; 0 for a free one.", 8000, minimum=0, maximum=65535, **HTTP)
    allow_origin: tuple[str, ...] = option("Origin, as https://example.org, whose pages may read answers; repeat the flag.", (), **HTTP)
    reload: bool = option("Open the index and the corpus anew when they are replaced on disk.", False)
    max_queries: int = option("Queries of a request.", 256, minimum=1, maximum=10_000)
    queue: int = option("Queries that may wait; more are refused with status 503.", 1024, minimum=1)
    timeout: float = option("Seconds to an answer, after which a request fails with status 504.", 30.0, above=0.0, maximum=3600.0)
    mcp: bool = option("Serve an agent over standard input and output, by the Model Context Protocol, in place of HTTP.", False)
    threads: int | None = option(**THREADS)
    dtype: str = option(**INFERENCE_DTYPE)
    device: str = option(**DEVICE)

    def check(self) -> None:
        package = "mcp" if self.mcp else "uvicorn"
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"serve needs the package {package}; pip install 'moeir[{'mcp' if self.mcp else 'serve'}]'")
        if self.reload and self.corpus is not None and (is_stream(self.corpus) or is_remote(self.corpus)):
            raise UsageError(f"--corpus {self.corpus}: --reload reads it again when it is replaced on disk; name a file")

    def prepare(self) -> "SearchService":
        from moeir.serving.requests import SearchLimits
        from moeir.serving.service import SearchService, open_served_index

        options: dict[str, Any] = {"model": self.model, "prompt": self.prompt, "dtype": self.dtype, "device": self.device}
        return SearchService(
            lambda verified: open_served_index(self.index, self.corpus, self.rerank, self.collapse, verified=verified, **options),
            SearchLimits(self.depth, self.rerank_depth, self.max_queries, self.queue, self.timeout, self.collapse is None),
            self.threads,
            [path for path in (*self.index, self.corpus) if path is not None] if self.reload else [],
        )

    def work(self) -> None:
        if self.mcp:
            from moeir.serving.agent import serve_agent

            serve_agent(self.prepare())
            return
        from moeir.serving.app import build_server, open_listener, run_server

        with open_listener(self.host, self.port) as listener:
            service, address = self.prepare(), f"[{self.host}]" if ":" in self.host else self.host
            documents, lists = len(service.served.searcher.ids), ", ".join(service.served.lists)
            log.info("serving %s documents (%s) at http://%s:%d/", f"{documents:,}", lists, address, listener.getsockname()[1])
            run_server(build_server(service, self.allow_origin, IN_HEADERS if self.host in LOOPBACK else ("*",)), listener, self.timeout)
