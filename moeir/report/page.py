"""One page that holds everything it shows: no server, nothing from elsewhere, nothing that a text could start.

The policy in its head forbids all but the one script and the one style that stand in it, by their digests. Texts are data in
`<script type="application/json">`, never markup; the script puts them in place as text.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

BROWSER = Path(__file__).with_name("browser")
STYLES = ("page", "cases")
SCRIPTS = ("start", "charts", "measures", "compared", "training", "map", "queries", "lists", "reasons", "end")


def lines(title: str, data: Mapping[str, Any], parts: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """The page in pieces: `data` is read when it opens, each of the `parts` (name, value) when it is needed."""
    style, script = "".join(_read(f"{name}.css") for name in STYLES), "".join(_read(f"{name}.js") for name in SCRIPTS)
    head, foot = _read("page.html").split("<!-- data -->\n")
    substitutions = {"POLICY": policy(style, script), "TITLE": html.escape(title), "STYLE": style, "SCRIPT": script}
    yield re.sub(r"\[\[(\w+)\]\]", lambda match: substitutions[match[1]], head)
    yield embedded("data", data)
    for name, value in parts:
        yield embedded(name, value)
    yield re.sub(r"\[\[(\w+)\]\]", lambda match: substitutions[match[1]], foot)


def policy(style: str, script: str) -> str:
    """The content policy: nothing, but these two, and an icon that is no file."""
    hashes = {"script": digest(script), "style": digest(style)}
    rules = ["default-src 'none'", *(f"{kind}-src 'sha256-{value}'" for kind, value in hashes.items()), "img-src data:"]
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'"])


def digest(text: str) -> str:
    """SHA-256 as a policy writes it.

    >>> digest("")
    '47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='
    """
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def embedded(name: str, value: Any) -> str:
    """A value as a block of data: no `<` in it, so that no text can end the block.

    >>> embedded("a", ["</script>"])
    '<script type="application/json" id="a">["\\\\u003c/script>"]</script>\\n'
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>\n'


def _read(name: str) -> str:
    return (BROWSER / name).read_text(encoding="utf-8")
