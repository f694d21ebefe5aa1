"""A headless Chromium for tests of pages, controlled through its debugging pipe, without other dependencies."""

import itertools
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAM = next((found for name in ("chromium", "chromium-browser", "google-chrome", "chrome") if (found := shutil.which(name))), None)
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe", "--no-first-run",
         "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--disable-sync")  # fmt: skip


class Browser:
    """One page, with its network requests and its errors and console messages."""

    def __init__(self, folder: Path, width: int = 1400, height: int = 900) -> None:
        assert PROGRAM is not None
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        command = 'exec "$0" "$@" 3<&' + str(theirs_in) + " 4>&" + str(theirs_out)
        arguments = ["bash", "-c", command, PROGRAM, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        self._process = subprocess.Popen(arguments, pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self._numbers, self._rest, self._session = itertools.count(1), b"", None
        self.requests: list[str] = []
        self.problems: list[str] = []
        target = next(one for one in self.send("Target.getTargets")["targetInfos"] if one["type"] == "page")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        self.resize(width, height)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._out)
        os.close(self._in)
        self._process.kill()
        self._process.wait()

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events received before it are recorded."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": self._session} if self._session else {})
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._receive()
            if reply.get("id") == number:
                assert "error" not in reply, reply
                return dict(reply["result"])
            self._record_event(reply)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._in, 1 << 20)
            assert part, "the browser has gone"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    def _record_event(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event["method"] == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        if event["method"] == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(parameters["exceptionDetails"])[:1000])
        if event["method"] == "Runtime.consoleAPICalled" or event["method"] == "Log.entryAdded":
            self.problems.append(json.dumps(parameters)[:1000])

    def resize(self, width: int, height: int) -> None:
        """Set the window size in CSS pixels."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def set_color_scheme(self, theme: str) -> None:
        """Set the system's preference for light or dark."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def open(self, page: Path | str) -> float:
        """Open a file or an address, wait until the page is ready, and return the seconds it took."""
        start = time.monotonic()
        self.send("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while self.evaluate("document.documentElement.dataset.ready") != "true":
            assert time.monotonic() - start < 120, self.problems
            time.sleep(0.02)
        return time.monotonic() - start

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        return self.send("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def press(self, *keys: str) -> None:
        """Press keys, given by name or letter."""
        for key in keys:
            text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
            self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
            self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    def click(self, selector: str) -> None:
        """Click the middle of an element."""
        element = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{element}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        frames = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"  # until the page is drawn where it is
        self.send("Runtime.evaluate", expression=frames, awaitPromise=True)
        box = self.evaluate(f"(box => [box.x + box.width / 2, box.y + box.height / 2])({element}.getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)
