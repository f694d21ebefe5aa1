"""A corpus truncated as a model truncates it: title and text to LENGTH word pieces, two of them special, for a fair BM25 row.

python cut_corpus.py CORPUS MODEL_FOLDER LENGTH OUTPUT
"""

import sys
from pathlib import Path

from tokenizers import Tokenizer

from moeir.records import texts


def main(corpus: Path, model: Path, length: int, output: Path) -> None:
    """Write the truncated corpus."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()

    def cut(text: texts.Text) -> texts.Text:
        ends = tokenizer.encode(text.content, add_special_tokens=False).offsets[: length - 2]
        return texts.Text(text.id, text.content[: ends[-1][1]])

    texts.write_texts(map(cut, texts.read_texts(corpus)), output)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
