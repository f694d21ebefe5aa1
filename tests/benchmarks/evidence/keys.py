"""Docstrings with a share of queries that only exact words answer: each passage begins with a pair of rare words, its key.

    python keys.py DOCSTRINGS_FOLDER MODEL_FOLDER OUTPUT_FOLDER [--tested 1000] [--test 600] [--dev 300] [--first 320] [--second 800]
                   [--shares 0 60] [--layers 3] [--seed 1]

DOCSTRINGS_FOLDER was written by examples/docstrings.py. A query is one of its own (`plain`), or the key of a passage (`key`): two of 600
words of the model's vocabulary that stand nowhere else in the collection, so that a vector of a few numbers does not tell a passage
from all others, and an expert so bounded can learn nothing from such a query. TESTED passages, of whole modules, test; others train.
Writes corpus.jsonl (those that train), test-corpus.jsonl, test-queries.jsonl (TEST of each kind) with {test,plain,key}.tsv,
dev-queries.jsonl (DEV other plain ones) with dev.tsv, for each SHARE (per cent of keys) {first,second}-SHARE-queries.jsonl with the
examples {first,second}-SHARE.jsonl, whose negatives are ten passages of the module and ten of others, and model/, the first LAYERS layers
of MODEL_FOLDER with the rows of its vocabulary that the collection reads.
"""

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cut_layers import cut_layers
from modules import divide_modules, name_module
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from moeir.records import qrels, texts
from moeir.records.texts import Text

KEY_WORDS, MODULE_NEGATIVES, OTHER_NEGATIVES, FEWEST_LETTERS = 600, 10, 10, 5
EMBEDDINGS = "embeddings.word_embeddings.weight"


def choose_key_words(vocabulary: Iterable[str], known: set[str], count: int, rng: random.Random) -> list[str]:
    """Whole words of a vocabulary, of five letters or more, that the collection does not have.

    >>> choose_key_words(["walnut", "##walnut", "owl", "badger"], {"badger"}, 2, random.Random(1))
    ['walnut']
    """
    words = sorted(word for word in vocabulary if word.isascii() and word.isalpha() and len(word) >= FEWEST_LETTERS and word not in known)
    return rng.sample(words, min(count, len(words)))


def cut_vocabulary(model: Path, read: Iterable[str]) -> None:
    """Keep the rows of a vocabulary that some texts read; words are divided into the same pieces, as each piece that was used stays."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    state = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    used = {token["id"] for token in state["added_tokens"]}
    used |= {row for encoding in tokenizer.encode_batch(list(read)) for row in encoding.ids}
    rows = sorted(used)
    names = {row: name for name, row in state["model"]["vocab"].items()}
    state["model"]["vocab"] = {names[row]: number for number, row in enumerate(rows)}
    for token in state["added_tokens"]:
        token["id"] = state["model"]["vocab"][token["content"]]
    processor = state["post_processor"]  # of one of two forms
    for part in processor.get("special_tokens", {}).values():
        part["ids"] = [state["model"]["vocab"][token] for token in part["tokens"]]
    processor |= {name: [processor[name][0], state["model"]["vocab"][processor[name][0]]] for name in ("sep", "cls") if name in processor}
    (model / "tokenizer.json").write_text(json.dumps(state), encoding="utf-8")
    (model / "vocab.txt").write_text("".join(f"{names[row]}\n" for row in rows), encoding="utf-8")
    tensors = load_file(model / "model.safetensors")
    name = next(name for name in tensors if name.endswith(EMBEDDINGS))
    of_vocabulary = {one for one, tensor in tensors.items() if len(tensor) == len(tensors[name]) and (one == name or "predictions" in one)}
    cut = {one: (tensor[rows] if one in of_vocabulary else tensor).contiguous() for one, tensor in tensors.items()}
    save_file(cut, model / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (model / "config.json").write_text(json.dumps(config | {"vocab_size": len(rows)}, indent=2) + "\n", encoding="utf-8")


def draw_queries(
    count: int, share: int, passages: Sequence[str], plain: Sequence[tuple[str, str]], keys: Mapping[str, str], rng: random.Random
) -> list[tuple[str, str]]:
    """`count` queries (text, passage), of which `share` per cent are keys; each passage and each plain query once."""
    wanted = round(count * share / 100)
    drawn = [(keys[passage], passage) for passage in rng.sample(passages, min(wanted, len(passages)))]
    drawn += rng.sample(plain, min(count - wanted, len(plain)))
    rng.shuffle(drawn)
    return drawn


def read_collection(folder: Path) -> tuple[dict[str, Text], list[tuple[str, str]]]:
    """The passages, and all queries with the passage of each."""
    passages, queries = dict[str, Text](texts.read_texts_by_id(folder / "corpus.jsonl")), list[tuple[str, str]]()
    for part in ("train", "dev", "test"):
        if (folder / f"{part}.qrels").stat().st_size:
            judged = qrels.read_qrels(folder / f"{part}.qrels")
            queries += [(text.text, next(iter(judged[text.id]))) for text in texts.read_texts(folder / f"{part}-queries.jsonl")]
    return passages, queries


def write_queries(folder: Path, name: str, queries: Mapping[str, tuple[str, str]]) -> None:
    """NAME-queries.jsonl and NAME.tsv."""
    texts.write_texts([Text(query, text) for query, (text, _) in queries.items()], folder / f"{name}-queries.jsonl")
    qrels.write_qrels({query: {passage: 1} for query, (_, passage) in queries.items()}, folder / f"{name}.tsv")


def main() -> None:
    """Write the collection and the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("docstrings", "model", "output"):
        parser.add_argument(name, type=Path)
    for name, default in (("tested", 1000), ("test", 600), ("dev", 300), ("first", 320), ("second", 800), ("layers", 3), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--shares", type=int, nargs="+", default=[0, 60])
    options = parser.parse_args()
    rng, folder = random.Random(options.seed), options.output
    folder.mkdir(parents=True, exist_ok=True)
    passages, queries = read_collection(options.docstrings)
    of_module: dict[str, list[str]] = defaultdict(list)
    for name, passage in passages.items():
        of_module[name_module(passage.text)].append(name)
    part_of = divide_modules(of_module, {"test": options.tested}, rng)
    parts = {part: [name for module, names in of_module.items() if part_of[module] == part for name in names] for part in ("test", "train")}

    vocabulary = Tokenizer.from_file(str(options.model / "tokenizer.json")).get_vocab()
    plain_texts = [*(passage.text for passage in passages.values()), *(query for query, _ in queries)]
    known = {word for text in plain_texts for word in text.lower().split()}
    words = choose_key_words(vocabulary, known, KEY_WORDS, rng)
    keys = {name: " ".join(rng.sample(words, 2)) for name in passages}
    passages = {name: Text(name, f"{keys[name]}. {passage.text}") for name, passage in passages.items()}
    texts.write_texts([passages[name] for name in parts["train"]], folder / "corpus.jsonl")
    texts.write_texts([passages[name] for name in parts["test"]], folder / "test-corpus.jsonl")

    trained, tested = set(parts["train"]), set(parts["test"])
    kinds = {"plain": draw_queries(options.test, 0, parts["test"], [one for one in queries if one[1] in tested], keys, rng)}
    kinds["key"] = draw_queries(options.test, 100, parts["test"], [], keys, rng)
    named = {kind: {f"{kind}-{number}": query for number, query in enumerate(drawn)} for kind, drawn in kinds.items()}
    for name, of_set in {"test": named["plain"] | named["key"], **named}.items():
        write_queries(folder, name, of_set)
    for share in dict.fromkeys(options.shares):
        plain = [one for one in queries if one[1] in trained]
        drawn = draw_queries(options.first + options.second, share, parts["train"], plain, keys, rng)
        for part, of_part in (("first", drawn[: options.first]), ("second", drawn[options.first :])):
            named_part = {f"{part}-{number}": query for number, query in enumerate(of_part)}
            write_queries(folder, f"{part}-{share}", named_part)
            rows = []
            for query, (_, positive) in named_part.items():
                module = [name for name in of_module[name_module(passages[positive].text.partition(". ")[2])] if name != positive]
                near = rng.sample(module, min(MODULE_NEGATIVES, len(module)))
                far = [name for name in rng.sample(parts["train"], min(OTHER_NEGATIVES + 1, len(trained))) if name != positive]
                rows.append({"query_id": query, "positive_ids": [positive], "negative_ids": list(dict.fromkeys([*near, *far]))})
            (folder / f"{part}-{share}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    rest = [one for one in queries if one[1] in tested and one not in kinds["plain"]]
    of_dev = draw_queries(options.dev, 0, [], rest, keys, rng)
    write_queries(folder, "dev", {f"dev-{number}": query for number, query in enumerate(of_dev)})
    cut_layers(options.model, folder / "model", options.layers)
    cut_vocabulary(folder / "model", (*(passage.text for passage in passages.values()), *(query for query, _ in queries)))


if __name__ == "__main__":
    main()
