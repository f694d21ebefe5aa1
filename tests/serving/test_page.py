"""The page of a server: it runs only its own script, asks only its server, and works with mouse, keyboard, on a phone and in the dark."""

import base64
import hashlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests import browser
from tests.conftest import run_moeir
from tests.serving.server_process import run_server

EVIL = '</script><script>window.evil = 1</script><!-- \' " & \u2028 <img src=x onerror="window.evil = 2"> [[SCRIPT]]'


def test_the_page_holds_one_script_and_one_style_that_its_policy_knows(index: Path, serve: Any) -> None:
    reply = serve(index=index).get("/")
    text = reply.text
    policy = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]+)">', text)[0]
    assert policy.startswith("default-src 'none'; ") and policy.endswith("; connect-src 'self'")
    assert reply.headers["content-security-policy"] == "frame-ancestors 'none'" and reply.headers["content-type"].startswith("text/html")
    for tag in ("script", "style"):
        (code,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert f"{tag}-src 'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'" in policy
        assert not re.search(
            r"https?://(?!www\.w3\.org/2000/svg)|@import|url\(|innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b", code
        )
    assert not re.search(r"<[^>]+\s(on\w+|style)=", text.replace(code, "")) and re.findall(r'(?:src|href)="([^#"]+)"', text) == ["data:,"]


@pytest.fixture(scope="module")
def address(index: Path, toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of CAME beside BM25, over texts with markup."""
    folder = tmp_path_factory.mktemp("page")
    corpus = [json.loads(line) for line in (toy / "corpus.jsonl").read_text(encoding="utf-8").splitlines()]
    corpus[0] |= {"title": EVIL, "text": corpus[0]["text"] + EVIL}
    (folder / "corpus.jsonl").write_text("".join(json.dumps(one) + "\n" for one in corpus), encoding="utf-8")
    run_moeir("index", "--corpus", folder / "corpus.jsonl", "--engine", "bm25", "--output", folder / "bm25")
    with run_server(index, "--index", folder / "bm25", "--corpus", folder / "corpus.jsonl", "--dtype", "float32") as (_, port):
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    if browser.PROGRAM is None:
        pytest.skip("chromium is not installed")
    with browser.Browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def chromium(window: browser.Browser) -> browser.Browser:
    """The browser as it was before other tests."""
    window.send("Page.navigate", url="about:blank")
    window.resize(1400, 900)
    window.set_color_scheme("light")
    window.requests.clear()
    window.problems.clear()
    return window


def wait_for(page: browser.Browser, expression: str) -> Any:
    """The value of an expression, as soon as it is true."""
    for _ in range(600):
        if value := page.evaluate(expression):
            return value
        time.sleep(0.05)
    raise AssertionError(f"{expression} is not true: {page.problems}, {page.evaluate('document.body.innerText')}")


def search(page: browser.Browser, address: str, query: str) -> None:
    page.open(address)
    page.evaluate(f"document.getElementById('search').value = {json.dumps(query)}")
    page.click("#go")
    wait_for(page, "document.querySelector('.block') !== null")


def test_a_search_shows_the_lists_of_all_experts_and_why_a_document_is_there(chromium: browser.Browser, address: str) -> None:
    search(chromium, address, "which owl hunts in the night")
    names = chromium.evaluate("[...document.querySelectorAll('.list h3')].map((one) => one.childNodes[1].textContent)")
    assert names == ["lexical", "local", "global", "bm25", "fused"]
    blocks = chromium.evaluate("[...document.querySelectorAll('.block h3')].map((one) => one.textContent)")
    assert blocks[0] == "What each expert gives to the fused score" and "bm25: terms that both have" in blocks
    assert "local: each query token’s best token" in blocks and chromium.evaluate("document.querySelectorAll('.passage mark').length") > 0
    other = "[...document.querySelectorAll('.list:first-child .hit')].find((one) => !one.classList.contains('same'))"
    chromium.evaluate(f"{other}.id = 'other'")
    number = chromium.evaluate("document.getElementById('other').dataset.number")
    chromium.click("#other")
    wait_for(chromium, f"document.querySelector('.hit.same').dataset.number === '{number}' && document.querySelector('.block') !== null")
    assert set(chromium.requests) <= {address, "data:,", f"{address}search", f"{address}?q=which%20owl%20hunts%20in%20the%20night"}
    assert chromium.problems == []


def test_the_keyboard_is_enough(chromium: browser.Browser, address: str) -> None:
    chromium.open(address)
    wait_for(chromium, "document.activeElement.id === 'search'")  # the page gives it the focus when it is loaded
    chromium.evaluate("document.activeElement.blur()")
    chromium.press("/", *"owl", "Enter")
    wait_for(chromium, "document.querySelector('.block') !== null")
    assert chromium.evaluate("document.getElementById('search').value") == "owl" and chromium.evaluate("location.search") == "?q=owl"
    hits_of_bm25 = chromium.evaluate("document.querySelectorAll('.hit[data-run=\"3\"]').length")
    rows = "[...document.activeElement.closest('ol').querySelectorAll('.hit')]"
    focus = f"[Number(document.activeElement.dataset.run), {rows}.indexOf(document.activeElement)]"
    seen = []
    for key in ("ArrowDown", "ArrowDown", "ArrowUp", "ArrowLeft", "ArrowLeft", "ArrowDown", "ArrowRight"):
        chromium.press(key)
        seen.append(chromium.evaluate(focus))
    assert seen == [[4, 0], [4, 1], [4, 0], [3, 0], [2, 0], [2, 1], [3, min(1, hits_of_bm25 - 1)]]
    chromium.press("Escape")
    assert chromium.evaluate("document.activeElement.id") == "search"


def test_texts_and_queries_stay_texts(chromium: browser.Browser, address: str) -> None:
    chromium.open(f"{address}?q={quote('owl ' + EVIL)}")
    wait_for(chromium, "document.querySelector('.block') !== null")
    wait_for(chromium, "document.body.innerText.includes('window.evil = 2')")
    assert chromium.evaluate("document.getElementById('search').value").startswith("owl </script>")
    chromium.evaluate("[...document.querySelectorAll('.hit')].find((one) => one.textContent.includes('window.evil')).click()")
    wait_for(chromium, "document.querySelector('.passage').textContent.includes('window.evil = 2')")
    assert chromium.evaluate("typeof window.evil") == "undefined" and chromium.problems == []
    assert chromium.evaluate("document.querySelectorAll('img, iframe, object, form').length") == 0


def test_a_phone_and_the_dark_are_served(chromium: browser.Browser, address: str) -> None:
    chromium.resize(390, 844)
    search(chromium, address, "owl")
    assert chromium.evaluate("document.documentElement.scrollWidth") <= 390
    light = chromium.evaluate("getComputedStyle(document.body).backgroundColor")
    chromium.set_color_scheme("dark")
    assert chromium.evaluate("getComputedStyle(document.body).backgroundColor") != light
    chromium.click("#theme")
    assert chromium.evaluate("getComputedStyle(document.body).backgroundColor") == light


def test_an_error_is_said_on_the_page(chromium: browser.Browser, address: str) -> None:
    chromium.open(address)
    chromium.evaluate("document.getElementById('search').removeAttribute('maxlength')")
    chromium.evaluate("document.getElementById('search').value = 'o'.repeat(10001)")
    chromium.click("#go")
    words = wait_for(chromium, "document.querySelector('#status.warn')?.textContent")
    assert "at most 10,000 characters, found 10,001" in words
