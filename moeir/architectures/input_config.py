"""How a checkpoint reads texts: prefixes such as "query: ", maximum lengths, and further prompts of queries by name."""

import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from moeir.errors import ArtifactError, UsageError

SIDES = ("query", "document")
DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # the first that is there counts, even if it is empty
OPTIONAL = ("prompts", "default_prompt", "template", "instruction")  # left out of moeir.json if there are none


@dataclass(frozen=True)
class InputConfig:
    """Prefixes and maximum lengths of texts: set once when a checkpoint is built and stored in it; no later stage has a flag for them.

    A query has `query_prefix`, or one of the `prompts` if training or search names it; `default_prompt` is that of sentence-transformers'
    encode(), kept for its files. `template` is the text of a pair for `cross-encoder:head=yes-no`, with {query}, {document} and perhaps
    {instruction} in it.
    """

    query_prefix: str = ""
    document_prefix: str = ""
    query_length: int = 64
    document_length: int = 256
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    template: str = ""
    instruction: str = ""

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str) -> "InputConfig":
        """From moeir.json; `source` names the file in errors."""
        expected = {item.name for item in fields(cls)}
        if not expected.difference(OPTIONAL) <= values.keys() <= expected:
            raise ArtifactError(f"{source}: `reading` has the fields {sorted(values)}; this version of moeir expects {sorted(expected)}")
        for item in (item for item in fields(cls) if item.name in values):
            kind = typing.get_origin(item.type) or item.type
            if type(value := values[item.name]) is not kind or (kind is dict and not all(type(text) is str for text in value.values())):
                raise ArtifactError(f"{source}: damaged: {item.name} is {value!r}; expected {kind.__name__}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """For moeir.json, and for what depends on how texts are read."""
        return {name: value for name, value in asdict(self).items() if value or name not in OPTIONAL}

    def override(self, changes: Mapping[str, Any]) -> "InputConfig":
        """A copy with other values; prompts are added to those that are there."""
        return replace(self, **{**changes, "prompts": self.prompts | changes.get("prompts", {})})

    def check(self, positions: int) -> None:
        """UsageError for lengths outside 3 to the encoder's positions."""
        for name, length in (("query", self.query_length), ("document", self.document_length)):
            if not 3 <= length <= positions:
                raise UsageError(f"--{name}-length {length}: expected 3 to {positions}, the encoder's positions")

    @property
    def document_prompt(self) -> str:
        """The name of the documents' prompt."""
        return next((name for name, text in self.prompts.items() if name in DOCUMENT_PROMPTS and text == self.document_prefix), "document")

    def find_query_prompt(self, name: str, flag: str) -> str:
        """The prompt of queries with a name; UsageError, with the `flag`, if there is none."""
        prompts = {"query": self.query_prefix} | {key: text for key, text in self.prompts.items() if key not in DOCUMENT_PROMPTS}
        if name not in prompts:
            raise UsageError(f"{flag} {name}: the checkpoint's prompts for queries are {', '.join(prompts)}; moeir init --prompt adds one")
        return prompts[name]

    def add_prefix(self, texts: Sequence[str], side: str, prompt: str = "") -> list[str]:
        """Texts with the prefix of their side, or queries with a `prompt` of this name."""
        prefix = self.query_prefix if side == "query" else self.document_prefix
        prefix = self.find_query_prompt(prompt, "--query-prompt") if prompt else prefix
        return [prefix + text for text in texts] if prefix else list(texts)

    def max_length(self, side: str) -> int:
        """Maximum tokens of a text of this side, special tokens included."""
        return self.query_length if side == "query" else self.document_length
