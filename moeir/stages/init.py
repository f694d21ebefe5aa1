"""`moeir init`: plain weights, or a checkpoint under other options, become a checkpoint."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeir import variants
from moeir.errors import UsageError
from moeir.settings import option, product, source
from moeir.stages.base import Counts, Stage


@dataclass(frozen=True, kw_only=True)
class Init(Stage):
    """Turn plain weights (a transformers or sentence-transformers folder) into a checkpoint, without training."""

    model: Path = source("weights", "Folder of weights, a checkpoint, or a hub id.")
    arch: str | None = option("Architecture, e.g. dense:pooling=mean,normalise=true; see: moeir variants architectures.", None)
    corpus: Path | None = source("texts", "Texts on which a vocabulary head that the weights lack is fitted.", None)
    from_scratch: bool = option("Take sizes and tokenizer from --model, and draw the weights.", False)
    query_prefix: str | None = option("Text put before every query.", None)
    document_prefix: str | None = option("Text put before every document.", None)
    query_length: int | None = option("Most tokens of a query [default: what the weights bring, or 64; cross-encoder: half a pair].", None)
    document_length: int | None = option("Most tokens of a document, or of a pair [default: what the weights bring, or 256; 512].", None)
    seed: int = option("Seed of weights that are started anew.", 42)
    output: Path = product("checkpoint", "Folder to write.")

    def check(self) -> None:
        if self.arch is not None:
            variants.resolve("architectures", self.arch)
        check_seed(self.seed)

    def work(self) -> Counts:
        from moeir.architectures.card import write_card
        from moeir.architectures.starting import start

        texts = first_texts(self.corpus)
        checkpoint = start(self.model, self.arch, reading_rules(self), texts, self.seed, scratch=self.from_scratch)
        checkpoint.save(self.output)
        write_card(self.output, checkpoint, base=str(self.model), training=None)
        return {"parameters": checkpoint.architecture.parameter_count()}


def check_seed(seed: int) -> None:
    """UsageError for a seed that a generator cannot take."""
    if not 0 <= seed < 2**32:
        raise UsageError(f"--seed {seed}: expected 0 to {2**32 - 1}")


def reading_rules(stage: Any) -> dict[str, Any]:
    """The reading rules that were given as flags."""
    names = ("query_prefix", "document_prefix", "query_length", "document_length")
    return {name: value for name in names if (value := vars(stage)[name]) is not None}


def first_texts(corpus: Path | None, count: int = 4000) -> list[str]:
    """The first texts of a corpus, if there is one."""
    from itertools import islice

    from moeir.records import texts

    return [text.content for text in islice(texts.read(corpus, keep_empty=True), count) if text.content] if corpus else []
