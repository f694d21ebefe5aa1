"""A server in this process, over the toy indexes."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from moeir.stages.base import check_settings
from moeir.stages.serve import Serve


@pytest.fixture
def serve() -> Iterator[Callable[..., Any]]:
    """`serve(index=…, …)`: a client of a server with these settings, which runs until the test ends; its `service` is an attribute."""
    testclient = pytest.importorskip("starlette.testclient", reason="needs the extra serve")
    from moeir.serving.app import build_server

    with ExitStack() as stack:

        def start(hosts: tuple[str, ...] = ("*",), **options: Any) -> Any:
            options = {"dtype": "float32", **options}
            options["index"] = tuple(map(Path, options["index"] if isinstance(options["index"], tuple) else (options["index"],)))
            stage = Serve(**options)
            check_settings(stage)
            service = stage.prepare()
            app = build_server(service, stage.allow_origin, hosts)
            client = stack.enter_context(testclient.TestClient(app, raise_server_exceptions=False))
            client.service = service
            return client

        yield start
