"""Texts, vectors and weighted terms of any number of documents, generated in parts with a seed: for sizes that cannot be encoded here.

    python -m tests.benchmarks.generated_collection start WORK [--documents 10000000 --parts 10]
    python -m tests.benchmarks.generated_collection texts|dense|sparse WORK [… --part 3]
    python -m tests.benchmarks.generated_collection stream WORK [--documents 7000000]

`start` writes words, queries, a small encoder, its checkpoints (`dense`, and `splade:queries=tokens`) and their encodings of 2,048 seed
texts. `texts` writes corpus.jsonl: 30 words a document, of a million invented words, the r-th as frequent as 1 / r. `dense` writes a part's
encodings: the vector of a seed text with noise, 384 wide. `sparse` writes those of about 70 weighted terms, as frequent as words. A query
is a seed text that lacks some words. `stream` writes corpus, queries and judgements of many queries over 1,000 documents. What is there
already is not written again, and a part has the same bytes whenever it is written.
"""

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from tokenizers.implementations import BertWordPieceTokenizer

import moeir
from moeir.artifacts import manifests
from moeir.backbones.encoder import Encoder
from moeir.backbones.families import bert, weights_io
from moeir.representations.base import RepresentationWriter
from moeir.representations.dense import Dense
from moeir.representations.sparse import Sparse

WORDS, TOKENIZER_WORDS, WORDS_PER_TEXT, DRAWS_PER_DOCUMENT = 1_000_000, 30_000, 30, 96
QUERIES, SEED_TEXTS, WIDTH, ROWS_AT_ONCE, STREAM_DOCUMENTS = 256, 2048, 384, 20_000, 1000
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONFIG = {
    "model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": WIDTH, "num_attention_heads": 6, "num_hidden_layers": 1,
    "intermediate_size": WIDTH, "max_position_embeddings": 128, "type_vocab_size": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0, "initializer_range": 0.2, "layer_norm_eps": 1e-12, "pad_token_id": 0,
    "vocab_size": len(SPECIAL) + TOKENIZER_WORDS,
}  # fmt: skip
ARCHITECTURES = {"dense": "dense:pooling=mean,normalise=true", "sparse": "splade:queries=tokens"}


def spell_word(rank: int) -> str:
    """An invented word for each rank, shorter for frequent ones."""
    syllables = [consonant + vowel for consonant in "bdfgklmnprtvz" for vowel in "aeiou"]
    spelling = ""
    while True:
        rank, last = divmod(rank, len(syllables))
        spelling += syllables[last]
        if not rank:
            return f"{spelling}x"  # no ending that a stemmer removes
        rank -= 1


def draw_ranks(rng: np.random.Generator, shape: tuple[int, ...], words: int) -> np.ndarray:
    """Ranks from 0 whose frequency falls as 1 / rank (Zipf's law)."""
    return np.minimum(np.exp(rng.random(shape, np.float32) * np.float32(np.log(words + 1))).astype(np.int32), words) - 1


def make_start(work: Path) -> None:
    """Write the encoder, its two checkpoints, the seed texts and their encodings, and the queries."""
    weights = work / "weights"
    weights.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    (weights / "vocab.txt").write_text("".join(f"{one}\n" for one in (*SPECIAL, *map(spell_word, range(TOKENIZER_WORDS)))))
    BertWordPieceTokenizer(str(weights / "vocab.txt"), lowercase=True).save(str(weights / "tokenizer.json"))
    weights_io.write_model(weights, CONFIG, Encoder(bert.parse_config(CONFIG), vocabulary_head=True).state_dict(), hf_compatible=True)
    ranks = draw_ranks(np.random.default_rng(0), (SEED_TEXTS, 12), TOKENIZER_WORDS)
    seeds = [" ".join(map(spell_word, row)) for row in ranks.tolist()]
    write_texts(work / "seeds.jsonl", (f"s{number}" for number in range(SEED_TEXTS)), iter(seeds))
    write_texts(work / "queries.jsonl", (f"q{number}" for number in range(QUERIES)), (" ".join(text.split()[:8]) for text in seeds))
    for name, spec in ARCHITECTURES.items():
        moeir.init(model=weights, arch=spec, document_length=32, query_length=32, output=work / name / "ckpt")
    moeir.encode(model=work / "dense/ckpt", corpus=work / "seeds.jsonl", dtype="float32", output=work / "dense/seeds")
    few = list(moeir.read_texts(work / "seeds.jsonl"))[:8]  # for its manifest: a random head activates half of all terms
    moeir.encode(model=work / "sparse/ckpt", corpus=few, terms=64, dtype="float32", output=work / "sparse/seeds")


def write_texts(path: Path, names: Iterator[str], contents: Iterator[str]) -> None:
    """JSON lines, under their name when they are whole."""
    partial = path.with_suffix(".new")
    with open(partial, "w", encoding="ascii") as file:
        file.writelines(f'{{"_id": "{name}", "text": "{content}"}}\n' for name, content in zip(names, contents, strict=False))
    os.replace(partial, path)


def document_ids(first: int, count: int) -> Iterator[str]:
    return (f"d{number}" for number in range(first, first + count))


def row_blocks(first: int, count: int) -> Iterator[tuple[np.random.Generator, int]]:
    """A generator and a number of rows for each block of a range of documents; a block's numbers depend on its place alone."""
    for row in range(first, first + count, ROWS_AT_ONCE):
        yield np.random.default_rng([1, row]), min(ROWS_AT_ONCE, first + count - row)


def generate_contents(count: int) -> Iterator[str]:
    """The texts of documents 0 to count − 1."""
    words = np.array([spell_word(rank) for rank in range(WORDS)], dtype=object)
    for rng, rows in row_blocks(0, count):
        for row in words[draw_ranks(rng, (rows, WORDS_PER_TEXT), WORDS)].tolist():
            yield " ".join(row)


def generate_dense(seeds: torch.Tensor, first: int, count: int) -> Iterator[Dense]:
    """Vectors around those of the seed texts, of length 1."""
    for rng, rows in row_blocks(first, count):
        vectors = rng.standard_normal((rows, WIDTH), np.float32) * np.float32(0.7 / WIDTH**0.5)
        vectors += seeds.numpy()[rng.integers(len(seeds), size=rows)]
        yield Dense(torch.nn.functional.normalize(torch.from_numpy(vectors), dim=1).half())


def generate_sparse(vocabulary: int, first: int, count: int) -> Iterator[Sparse]:
    """Terms drawn as words are, each once, with weights between 0.1 and 3."""
    for rng, rows in row_blocks(first, count):
        terms = np.sort(draw_ranks(rng, (rows, DRAWS_PER_DOCUMENT), TOKENIZER_WORDS) + len(SPECIAL), axis=1)
        distinct = np.concatenate([np.ones((rows, 1), bool), terms[:, 1:] != terms[:, :-1]], axis=1)
        starts = np.concatenate([[0], np.cumsum(distinct.sum(1))])
        weights = 0.1 + 2.9 * rng.random(int(starts[-1]), np.float32)
        yield Sparse(torch.from_numpy(starts), torch.from_numpy(terms[distinct]), torch.from_numpy(weights), vocabulary)


def make_encodings(work: Path, kind: str, folder: Path, first: int, count: int) -> None:
    """Write the encodings of a part, under the manifest of the seed texts' encodings."""
    source = work / kind / "seeds"
    seeds, manifest = moeir.open_encodings(source), manifests.read_manifest(source)
    ((expert, opened),) = seeds.items()
    partial = folder.with_name(f".{folder.name}.new")
    partial.mkdir(parents=True, exist_ok=True)
    writer = RepresentationWriter(partial / expert)
    blocks = generate_dense(opened.vectors.float(), first, count) if kind == "dense" else generate_sparse(opened.vocabulary, first, count)
    for block in blocks:
        writer.append(block)
    writer.close()
    (partial / "ids.txt").write_text("".join(f"{name}\n" for name in document_ids(first, count)), encoding="ascii")
    counts = manifest["counts"] | {
        "texts": count,
        "checkpoint": manifest["counts"]["checkpoint"] | {"path": str((work / kind / "ckpt").resolve())},
    }
    record = {name: manifest[name] for name in ("stage", "settings", "sources")}
    whole = manifests.build_manifest(partial, "encodings", record, folder.name) | {"counts": counts}
    (partial / "manifest.json").write_text(manifests.serialize_manifest(whole), encoding="utf-8")
    os.replace(partial, folder)


def make_stream(work: Path, count: int) -> None:
    """Documents of 30 words, queries of three words of a document each, and the judgement that it is relevant."""
    work.mkdir(parents=True, exist_ok=True)
    contents = list(generate_contents(STREAM_DOCUMENTS))
    write_texts(work / "corpus.jsonl", document_ids(0, STREAM_DOCUMENTS), iter(contents))
    rng = np.random.default_rng(2)
    chosen = rng.integers(STREAM_DOCUMENTS, size=count)
    places = rng.integers(WORDS_PER_TEXT - 3, size=count)
    split = [content.split() for content in contents]
    pairs = zip(chosen.tolist(), places.tolist(), strict=True)
    write_texts(work / "queries.jsonl", (f"q{number}" for number in range(count)), (" ".join(split[row][at : at + 3]) for row, at in pairs))
    with open(work / "qrels.txt", "w", encoding="ascii") as file:
        file.writelines(f"q{number} 0 d{row} 1\n" for number, row in enumerate(chosen.tolist()))


def main() -> None:
    """Write what is asked for, unless it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("start", "texts", "dense", "sparse", "stream"))
    parser.add_argument("work", type=Path)
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--parts", type=int, default=10)
    parser.add_argument("--part", type=int, default=0)
    arguments = parser.parse_args()
    work, documents, part, parts = arguments.work, arguments.documents, arguments.part, arguments.parts
    edges = [documents * number // parts for number in range(parts + 1)]
    output = {"start": work / "sparse/seeds", "texts": work / "corpus.jsonl", "stream": work / "qrels.txt"}.get(
        arguments.kind, work / arguments.kind / "enc" / f"{part}-of-{parts}"
    )
    if output.exists():
        return
    if arguments.kind == "start":
        make_start(work)
    elif arguments.kind == "texts":
        write_texts(output, document_ids(0, documents), generate_contents(documents))
    elif arguments.kind == "stream":
        make_stream(work, documents)
    else:
        make_encodings(work, arguments.kind, output, edges[part], edges[part + 1] - edges[part])
    print(json.dumps({"made": str(output)}))


if __name__ == "__main__":
    main()
