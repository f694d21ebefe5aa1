"""Random access to texts by id from a temporary file; memory holds only their offsets."""

import json
import tempfile
from collections.abc import Container, Iterable
from typing import IO

from moeir.records.texts import Text


class TextStore:
    """Texts in an unnamed temporary file; those of `wanted` only, if it is given."""

    def __init__(self, texts: Iterable[Text], wanted: Container[str] | None = None) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the store
        self._offsets: dict[str, int] = {}
        end = 0
        for text in texts:
            if wanted is None or text.id in wanted:
                self._offsets[text.id] = end
                end += self._file.write(json.dumps([text.title, text.text]).encode() + b"\n")

    def __len__(self) -> int:
        return len(self._offsets)

    def get(self, name: str) -> Text | None:
        """The text of an id, None if absent."""
        if name not in self._offsets:
            return None
        self._file.seek(self._offsets[name])
        title, text = json.loads(self._file.readline())
        return Text(name, text, title)
