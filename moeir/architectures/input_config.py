"""How a checkpoint reads texts: prefixes such as "query: ", and maximum lengths."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from moeir.errors import ArtifactError, UsageError


@dataclass(frozen=True)
class InputConfig:
    """Prefixes and maximum lengths of texts: set once when a checkpoint is built and stored in it; no later stage has a flag for them."""

    query_prefix: str = ""
    document_prefix: str = ""
    query_length: int = 64
    document_length: int = 256

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str) -> "InputConfig":
        """From moeir.json; `source` names the file in errors."""
        expected = {item.name for item in fields(cls)}
        if set(values) != expected:
            raise ArtifactError(f"{source}: `reading` has the fields {sorted(values)}; this version of moeir expects {sorted(expected)}")
        for item in fields(cls):
            if type(values[item.name]) is not item.type:
                raise ArtifactError(f"{source}: damaged: {item.name} is {values[item.name]!r}; expected {item.type.__name__}")
        return cls(**values)

    def check(self, positions: int) -> None:
        """UsageError for lengths outside 3 to the encoder's positions."""
        for name, length in (("query", self.query_length), ("document", self.document_length)):
            if not 3 <= length <= positions:
                raise UsageError(f"--{name}-length {length}: expected 3 to {positions}, the encoder's positions")

    def add_prefix(self, texts: Sequence[str], side: str) -> list[str]:
        """Texts with the prefix of their side."""
        prefix = self.query_prefix if side == "query" else self.document_prefix
        return [prefix + text for text in texts] if prefix else list(texts)

    def max_length(self, side: str) -> int:
        """Maximum tokens of a text of this side, special tokens included."""
        return self.query_length if side == "query" else self.document_length
