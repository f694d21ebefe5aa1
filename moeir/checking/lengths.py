"""Truncation: how many texts exceed the maximum length, and how many tokens they lose."""

from collections.abc import Callable, Sequence

from moeir.checking.findings import Findings

TEXTS_AT_ONCE = 512


class Cut:
    """Counts the texts of one file that exceed `max_tokens`; `count_tokens` includes special tokens."""

    def __init__(self, file: str, max_tokens: int, count_tokens: Callable[[Sequence[str]], list[int]]) -> None:
        self.file, self.most, self._sizes = file, max_tokens, count_tokens
        self._waiting: list[tuple[int | None, str]] = []
        self.texts = self.cut = self.tokens = self.lost = self.longest = 0
        self._first: int | None = None

    def add(self, line: int | None, text: str) -> None:
        """Add a text."""
        self._waiting.append((line, text))
        if len(self._waiting) == TEXTS_AT_ONCE:
            self._count()

    def _count(self) -> None:
        for (line, _), size in zip(self._waiting, self._sizes([text for _, text in self._waiting]), strict=True):
            self.texts += 1
            self.tokens += size
            self.longest = max(self.longest, size)
            if size > self.most:
                self.cut += 1
                self.lost += size - self.most
                self._first = self._first or line
        self._waiting.clear()

    def say(self, findings: Findings) -> None:
        """Add a finding if a text is truncated."""
        if self._waiting:
            self._count()
        if self.cut:
            texts, tokens = self.cut / self.texts, self.lost / self.tokens
            message = f"{self.cut:,} of {self.texts:,} texts ({texts:.1%}) are cut at {self.most} tokens, the longest has {self.longest:,}"
            findings.add(self.file, self._first, "truncated", f"{message}; {tokens:.1%} of all tokens are lost")
