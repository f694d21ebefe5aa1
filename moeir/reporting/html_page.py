"""A self-contained HTML page: no server, no external resources, no way for a text to run code.

The content policy in its head allows only the one script and the one style of the page, by their digests. Texts are data in
`<script type="application/json">`, never markup; the script inserts them as text nodes.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ASSETS = Path(__file__).with_name("browser")
STYLES = ("page", "cases")
SCRIPTS = ("start", "charts", "measures", "compared", "training", "queries", "lists", "reasons", "end")


def render_page(
    title: str,
    data: Mapping[str, Any],
    parts: Iterable[tuple[str, Any]] = (),
    *,
    template: Path = ASSETS / "page",
    styles: Sequence[Path | str] = STYLES,
    scripts: Sequence[Path | str] = SCRIPTS,
    rules: Sequence[str] = (),
) -> Iterator[str]:
    """Render the page in pieces: `data` is read on load, each of the `parts` (name, value) on demand. Another page has another template,
    styles, scripts and further rules of its content policy."""
    style, script = "".join(_read_asset(f"{name}.css") for name in styles), "".join(_read_asset(f"{name}.js") for name in scripts)
    head, foot = _read_asset(f"{template}.html").split("<!-- data -->\n")
    policy = "; ".join([content_policy(style, script), *rules])
    substitutions = {"POLICY": policy, "TITLE": html.escape(title), "STYLE": style, "SCRIPT": script}
    yield re.sub(r"\[\[(\w+)\]\]", lambda match: substitutions[match[1]], head)
    yield json_block("data", data)
    for name, value in parts:
        yield json_block(name, value)
    yield re.sub(r"\[\[(\w+)\]\]", lambda match: substitutions[match[1]], foot)


def content_policy(style: str, script: str) -> str:
    """Content security policy that allows only this style, this script and a data: icon."""
    hashes = {"script": csp_hash(script), "style": csp_hash(style)}
    rules = ["default-src 'none'", *(f"{kind}-src 'sha256-{value}'" for kind, value in hashes.items()), "img-src data:"]
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'"])


def csp_hash(text: str) -> str:
    """SHA-256 in the form of a content security policy.

    >>> csp_hash("")
    '47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='
    """
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def json_block(name: str, value: Any) -> str:
    """A value as a JSON data block without `<`, so that no text can close the block.

    >>> json_block("a", ["</script>"])
    '<script type="application/json" id="a">["\\\\u003c/script>"]</script>\\n'
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>\n'


def _read_asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
