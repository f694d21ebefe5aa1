"""Truncation: how many texts exceed the maximum length, and how many tokens they lose."""

from collections.abc import Callable, Sequence

from moeir.checking.findings import Findings

TEXTS_PER_BATCH = 512


class TruncationCounter:
    """Counts the texts of one file that exceed `max_tokens`; `count_tokens` includes special tokens."""

    def __init__(self, file: str, max_tokens: int, count_tokens: Callable[[Sequence[str]], list[int]]) -> None:
        self.file, self.max_tokens, self._count_tokens = file, max_tokens, count_tokens
        self._pending: list[tuple[int | None, str]] = []
        self.texts = self.truncated = self.tokens = self.lost_tokens = self.longest = 0
        self._first: int | None = None

    def add(self, line: int | None, text: str) -> None:
        """Add a text."""
        self._pending.append((line, text))
        if len(self._pending) == TEXTS_PER_BATCH:
            self._count_pending()

    def _count_pending(self) -> None:
        for (line, _), size in zip(self._pending, self._count_tokens([text for _, text in self._pending]), strict=True):
            self.texts += 1
            self.tokens += size
            self.longest = max(self.longest, size)
            if size > self.max_tokens:
                self.truncated += 1
                self.lost_tokens += size - self.max_tokens
                self._first = self._first or line
        self._pending.clear()

    def report(self, findings: Findings) -> None:
        """Add a finding if a text is truncated."""
        if self._pending:
            self._count_pending()
        if self.truncated:
            texts, tokens = self.truncated / self.texts, self.lost_tokens / self.tokens
            message = f"{self.truncated:,} of {self.texts:,} texts ({texts:.1%}) are cut at {self.max_tokens} tokens, the longest has {self.longest:,}"
            findings.add(self.file, self._first, "truncated", f"{message}; {tokens:.1%} of all tokens are lost")
