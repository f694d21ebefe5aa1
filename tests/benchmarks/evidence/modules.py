"""A collection of docstrings divided by module: the passages and queries of a top-level module all train, all develop, or all test.

    python modules.py DOCSTRINGS_FOLDER OUTPUT_FOLDER [--test 4500] [--dev 800] [--first 480] [--second 1600] [--seed 1]

DOCSTRINGS_FOLDER was written by examples/docstrings.py, whose own division is not used: its test part is small. Modules are drawn until
their queries are TEST, then DEV, of which DEV stay; of the queries of the others FIRST and SECOND train, one part each. Writes
{first,second,dev,test}-queries.jsonl with {first,second,dev,test}.tsv, test-{description,name}.tsv, corpus.jsonl (all passages),
training-corpus.jsonl (those of modules that train) and dev-corpus.jsonl (those that the queries of dev are judged on, and as many others).
"""

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from moeir.records import qrels, texts


def name_module(passage: str) -> str:
    """The top-level module of a passage, which begins with where its object is.

    >>> name_module("nn.functional, relu(input). Details."), name_module("io. The module itself.")
    ('nn', 'io')
    """
    return passage.split(",")[0].split(".")[0]


def divide_modules(queries_of: Mapping[str, Sequence[str]], counts: Mapping[str, int], rng: random.Random) -> dict[str, str]:
    """The part of each module: `counts` says how many queries each part but `train` has at least.

    >>> divide_modules({"a": ["q1", "q2"], "b": ["q3"]}, {"test": 1}, random.Random(1))
    {'b': 'test', 'a': 'train'}
    """
    shuffled = sorted(queries_of)
    rng.shuffle(shuffled)
    filled, part_of = dict.fromkeys(counts, 0), {}
    for module in shuffled:
        part_of[module] = next((part for part in counts if filled[part] < counts[part]), "train")
        if part_of[module] in filled:
            filled[part_of[module]] += len(queries_of[module])
    return part_of


def main() -> None:
    """Write the collection."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("docstrings", "output"):
        parser.add_argument(name, type=Path)
    for name, default in (("test", 4500), ("dev", 800), ("first", 480), ("second", 1600), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    rng, folder = random.Random(options.seed), options.docstrings
    passages = texts.read_texts_by_id(folder / "corpus.jsonl")
    queries: dict[str, dict[str, str]] = {}  # records, which have a field `kind`
    judged: dict[str, dict[str, int]] = {}
    for part in ("train", "dev", "test"):
        lines = (folder / f"{part}-queries.jsonl").read_text(encoding="utf-8").splitlines()
        queries |= {record["_id"]: record for record in map(json.loads, lines)}
        judged |= qrels.read_qrels(folder / f"{part}.qrels") if lines else {}
    queries_of = defaultdict(list)
    for query, grades in judged.items():
        queries_of[name_module(passages[next(iter(grades))].text)].append(query)
    part_of = divide_modules(queries_of, {"test": options.test, "dev": options.dev}, rng)

    ids: dict[str, list[str]] = {part: [] for part in ("train", "dev", "test")}
    for module, of_module in queries_of.items():
        ids[part_of[module]] += of_module
    for of_part in ids.values():
        rng.shuffle(of_part)
    trained, ids["dev"] = ids.pop("train"), ids["dev"][: options.dev]
    ids |= {"first": trained[: options.first], "second": trained[options.first : options.first + options.second]}
    options.output.mkdir(parents=True, exist_ok=True)
    for part, of_part in ids.items():
        lines = [json.dumps(queries[one], ensure_ascii=False) + "\n" for one in of_part]
        (options.output / f"{part}-queries.jsonl").write_text("".join(lines), encoding="utf-8")
        qrels.write_qrels({one: judged[one] for one in of_part}, options.output / f"{part}.tsv")
    for kind in ("description", "name"):
        of_kind = {one: judged[one] for one in ids["test"] if queries[one]["kind"] == kind}
        qrels.write_qrels(of_kind, options.output / f"test-{kind}.tsv")
    texts.write_texts(passages.values(), options.output / "corpus.jsonl")
    trains = {module for module, part in part_of.items() if part == "train"}
    training = [passage for passage in passages.values() if name_module(passage.text) in trains]
    texts.write_texts(training, options.output / "training-corpus.jsonl")
    develop = {passage for query in ids["dev"] for passage in judged[query]}
    rest = [name for name in passages if name not in develop]
    dev_passages = develop | set(rng.sample(rest, min(len(develop), len(rest))))
    texts.write_texts([passage for name, passage in passages.items() if name in dev_passages], options.output / "dev-corpus.jsonl")


if __name__ == "__main__":
    main()
