"""Split documents into the spans of pre-training, whole sentences as far as they fit, so that queries can be generated for them.

    python examples/spans.py WEIGHTS DOCUMENTS OUTPUT LENGTH [SEED]

The tokenizer is that of WEIGHTS; LENGTH counts the two special tokens too. A span's id is DOCUMENT#char=BEGIN,END, where it
stands in the document; queries generated for it are its own in a pre-training on the documents, too.
"""

import json
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from moeir.backbones.families import weights_io
from moeir.backbones.token_files import chunk_texts
from moeir.backbones.tokenizer import TextTokenizer
from moeir.errors import MoeirError
from moeir.pretraining.span_cache import split_into_spans
from moeir.records import generated_queries, texts
from moeir.records.texts import Text

SHORT = 0.15  # probability of a shorter target length for a span, as in `moeir pretrain`


def spans(reader: TextTokenizer, documents: Path, maximum: int, seed: int) -> Iterator[Text]:
    for chunk in chunk_texts(texts.read_texts(documents, keep_empty=True)):
        for text, (_, characters) in zip(chunk, reader.encode_with_offsets([text.content for text in chunk]), strict=True):
            begins, first_sentences = split_into_spans(text, characters, maximum, SHORT, seed)
            offsets = [characters[begins[first]] for first in first_sentences]
            for begin, end in pairwise([*offsets, len(text.content)]):
                yield Text(generated_queries.format_span_id(text.id, begin, end), text.content[begin:end].strip())


def main(weights: Path, documents: Path, output: Path, length: int, seed: int = 42) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(f".{output.name}")
    with open(partial, "w", encoding="utf-8") as lines:
        for span in spans(TextTokenizer(weights_io.resolve_model(weights)), documents, length - 2, seed):
            lines.write(json.dumps({"_id": span.id, "text": span.text}, ensure_ascii=False) + "\n")
    partial.rename(output)


if __name__ == "__main__":
    if len(sys.argv) not in (5, 6):
        sys.exit(__doc__)
    try:
        main(*map(Path, sys.argv[1:4]), *map(int, sys.argv[4:]))
    except MoeirError as fault:
        sys.exit(f"error: {fault}")
