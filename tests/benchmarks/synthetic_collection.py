"""A synthetic collection of any size and a small random encoder, to measure throughput and memory, not quality.

    python synthetic_collection.py WORK_FOLDER COUNT CORPUS... [--layers 2 --seed 1]

Writes corpus.jsonl (COUNT passages of some 60 words: random sentences of the corpora), queries.jsonl (256 first words of random
sentences) and weights/ (`--layers` layers of 32, random, and a tokenizer of the 500 most frequent words, as the head of a large vocabulary
would take most of the time), for

    moeir init --model WORK_FOLDER/weights --from-scratch --arch came:shared_layers=1,local_dim=16 ...
"""

import argparse
import json
import random
import re
import string
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tokenizers.implementations import BertWordPieceTokenizer

from moeir.backbones.encoder import Encoder
from moeir.backbones.families import bert, weights_io
from moeir.records import texts

WORDS, QUERIES, QUERY_WORDS, VOCABULARY = 60, 256, 8, 500
SPECIAL = ("[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONFIG = {
    "model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 128, "type_vocab_size": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0, "initializer_range": 0.2, "layer_norm_eps": 1e-12, "pad_token_id": 0,
}  # fmt: skip


def split_sentences(corpora: list[Path]) -> list[str]:
    """The sentences of 5 to 40 words."""
    pieces = (
        one for corpus in corpora for text in texts.read_texts(corpus, keep_empty=True) for one in re.split(r"(?<=[.!?])\s+", text.content)
    )
    return [" ".join(words) for words in map(str.split, pieces) if 5 <= len(words) <= 40]


def sample_passages(known_sentences: list[str], count: int, rng: random.Random) -> Iterator[str]:
    """Passages of random sentences."""
    for _ in range(count):
        chosen, words = [], 0
        while words < WORDS - 8:
            chosen.append(known_sentences[rng.randrange(len(known_sentences))])
            words += chosen[-1].count(" ") + 1
        yield " ".join(chosen)


def write_jsonl(path: Path, letter: str, contents: Iterator[str]) -> None:
    """Texts as JSON lines, numbered."""
    with open(path, "w", encoding="utf-8") as file:
        for number, content in enumerate(contents):
            file.write(json.dumps({"_id": f"{letter}{number}", "text": content}, ensure_ascii=False) + "\n")


def write_weights(folder: Path, known_sentences: list[str], layers: int) -> None:
    """Write a BERT's folder, with a tokenizer of the most frequent words, and letters for the others."""
    folder.mkdir(exist_ok=True)
    counts = Counter(word for one in known_sentences for word in re.findall("[a-z]+", one.lower()) if len(word) > 1)
    words = [word for word, _ in counts.most_common(VOCABULARY)]
    letters = string.ascii_lowercase + string.digits
    pieces = [*SPECIAL, *string.punctuation, *letters, *(f"##{letter}" for letter in letters), *words]
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=True).save(str(folder / "tokenizer.json"))
    config = CONFIG | {"vocab_size": len(pieces), "num_hidden_layers": layers}
    weights_io.write_model(folder, config, Encoder(bert.parse_config(config), vocabulary_head=True).state_dict(), hf_compatible=True)


def main() -> None:
    """Write weights, queries and corpus."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("count", type=int)
    parser.add_argument("corpora", type=Path, nargs="+")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    known_sentences, rng = split_sentences(arguments.corpora), random.Random(arguments.seed)
    write_weights(arguments.work / "weights", known_sentences, arguments.layers)
    write_jsonl(
        arguments.work / "queries.jsonl",
        "q",
        (" ".join(known_sentences[rng.randrange(len(known_sentences))].split()[:QUERY_WORDS]) for _ in range(QUERIES)),
    )
    write_jsonl(arguments.work / "corpus.jsonl", "d", sample_passages(known_sentences, arguments.count, rng))


if __name__ == "__main__":
    main()
