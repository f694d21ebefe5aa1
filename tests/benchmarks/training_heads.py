"""Forward and backward of two heads: time and memory of ours, of the plain form and of sentence-transformers' code.

    python -m tests.benchmarks.training_heads SPLADE_CHECKPOINT COLBERT_CHECKPOINT CORPUS QUERIES
        [--documents 64 --queries 8 --passages 128 --questions 16 --rounds 3 --dtype float32 --threads 1 --bias 0 --heads max,sum,late]

Real texts through the checkpoints' encoders, which are not timed. Lexical: from the transformed states to a contrastive loss with FLOPS;
the plain form and sentence-transformers' SpladePooling get the decoder's logits of a padded batch [B, L, V]. Late interaction: from token
vectors to a contrastive loss. Each round runs every way once, in turns; the first, which measures memory, is not timed. Memory is the peak
of tensors beyond the inputs and their gradients. The floor is the time of the necessary matrix products, without padding and forward only,
at the best rate measured in the cache (one thread). Seconds are processor seconds of all threads.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sentence_transformers.multi_vector_encoder.scoring import colbert_scores
from sentence_transformers.sparse_encoder.modules import SpladePooling
from torch import Tensor

from moeir.architectures.checkpoint import RetrievalModel, open_checkpoint
from moeir.backbones.device import DTYPES, autocast
from moeir.backbones.packed_tokens import PackedTokens
from moeir.kernels.splade import find_max_positions, log_saturated_sum, selected_logits
from moeir.representations.multivector import MultiVector, maxsim
from moeir.representations.sparse import Sparse
from moeir.training.regularizers import DEFAULT_FLOPS_WEIGHT, flops
from tests.kernels.peak_memory import peak_bytes

Way = Callable[[list[Tensor]], Tensor]


def read_texts(path: Path, count: int) -> list[str]:
    """The first texts of a file of JSON lines."""
    with path.open(encoding="utf-8") as lines:
        records = [json.loads(line) for line, _ in zip(lines, range(count), strict=False)]
    return [f"{one.get('title', '')} {one['text']}".strip() for one in records]


@torch.no_grad()
def encode_states(checkpoint: RetrievalModel, said: list[str], side: str) -> tuple[PackedTokens, Tensor]:
    """Texts sorted by length, as in training, and their states."""
    checkpoint.architecture.eval()
    tokens, _ = checkpoint.tokenize(said, side).sort_by_length()
    return tokens, next(iter(checkpoint.architecture.encode_states(tokens).values()))


def contrastive(scores: Tensor) -> Tensor:
    """Contrastive loss; the positive of query i is number i · N / Q."""
    return F.cross_entropy(scores, torch.arange(len(scores)) * (scores.shape[1] // len(scores)))


def ours(inputs: list[Tensor], sides: list[PackedTokens], pooling: str) -> Tensor:
    """As heads/lexical.py after its transform."""
    *states, words, bias = inputs
    representations = []
    for states_of_side, tokens in zip(states, sides, strict=True):
        if pooling == "sum":
            rows, terms, weights = log_saturated_sum(states_of_side, tokens.layout, words, bias)
        else:
            rows, terms, winner_tokens = find_max_positions(states_of_side, tokens.layout, words, bias)
            weights = torch.log1p(selected_logits(states_of_side, words, bias, terms, winner_tokens).relu())
        representations.append(Sparse.from_pairs(rows, terms, weights, len(tokens), len(words)))
    return contrastive(representations[0].scores(representations[1])) + DEFAULT_FLOPS_WEIGHT * sum(
        (flops(usage[0]) for part in representations if (usage := part.term_usage())), torch.zeros(())
    )


def from_logits(inputs: list[Tensor], sides: list[PackedTokens], pool: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """With all logits of a padded batch; `pool` reduces them, with the mask of real tokens [B, L], to [B, V]."""
    *states, words, bias = inputs
    vectors = []
    for states_of_side, tokens in zip(states, sides, strict=True):
        rows, _, real = tokens.layout.padding
        vectors.append(pool(F.linear(states_of_side[rows], words, bias), real).float())
    with torch.autocast("cpu", enabled=False):
        scores = vectors[0] @ vectors[1].T
    return contrastive(scores) + DEFAULT_FLOPS_WEIGHT * sum((part.mean(0).square().sum() for part in vectors), torch.zeros(()))


def plain(pooling: str) -> Callable[[Tensor, Tensor], Tensor]:
    """log(1 + relu(x)) of all logits, then the maximum or the sum."""

    def pool(logits: Tensor, real: Tensor) -> Tensor:
        weights = torch.log1p(torch.relu(logits.masked_fill(~real[..., None], float("-inf"))))
        return weights.amax(1) if pooling == "max" else weights.sum(1)

    return pool


def theirs(pooling: str, chunk: int | None) -> Callable[[Tensor, Tensor], Tensor]:
    """sentence-transformers, with its option of `chunk` tokens at a time."""
    module = SpladePooling(pooling_strategy=pooling, chunk_size=chunk).train()

    def pool(logits: Tensor, real: Tensor) -> Tensor:
        embeddings: Tensor = module({"token_embeddings": logits, "attention_mask": real.long()})["sentence_embedding"]
        return embeddings

    return pool


def step(way: Way, inputs: list[Tensor], dtype: torch.dtype) -> tuple[float, float]:
    """Processor seconds of one forward and backward (the machine may be shared), and the loss."""
    for part in inputs:
        part.grad = None
    began = time.process_time()
    with autocast(dtype, "cpu"):
        loss = way(inputs)
    loss.backward()
    return time.process_time() - began, float(loss.detach())


def compare_ways(
    title: str, ways: dict[str, Way], inputs: list[Tensor], work: float, arguments: argparse.Namespace, dtype: torch.dtype
) -> None:
    """Run the ways in turns and print a table; `work` is the floor in seconds."""
    own = sum(part.nbytes for part in inputs)  # of the gradients; the inputs exist before
    memory: dict[str, float] = {}
    losses: dict[str, float] = {}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for name, way in ways.items():
        for part in inputs:
            part.grad = None
        output: list[float] = []
        memory[name] = (peak_bytes(lambda way=way, output=output: output.extend(step(way, inputs, dtype))) - own) / 2**20
        losses[name] = output[1]
    for _ in range(arguments.rounds):
        for name, way in ways.items():
            seconds[name].append(step(way, inputs, dtype)[0])
    first = next(iter(ways))
    print(f"\n{title}; floor {work:.3f} s\n")
    print("| way | processor seconds | times ours (least, most) | MiB beyond | ours in it | loss |\n|---|---|---|---|---|---|")
    for name in ways:
        ratios = sorted(one / mine for one, mine in zip(seconds[name], seconds[first], strict=True))
        timing = f"{statistics.median(seconds[name]):.3f} | {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        share = f"1/{memory[name] / memory[first]:.0f}"
        print(f"| {name} | {timing} | {memory[name]:.1f} | {share} | {losses[name]:.5f} |", flush=True)


def product_rate(left: int, inner: int, right: int, dtype: torch.dtype) -> float:
    """Best rate, in operations a second, of a product [left, inner] · [inner, right] that fits the processor's cache."""
    one, other, room = (torch.randn(*shape, dtype=dtype) for shape in ((left, inner), (right, inner), (left, right)))
    durations = []
    for _ in range(200):
        began = time.perf_counter()
        torch.mm(one, other.T, out=room)
        durations.append(time.perf_counter() - began)
    return 2 * left * inner * right / min(durations)


def lexical(arguments: argparse.Namespace, dtype: torch.dtype) -> None:
    """SPLADE's head, both poolings."""
    checkpoint = open_checkpoint(arguments.splade)
    encoder = checkpoint.architecture.encoder
    head, words = encoder.vocabulary_head, encoder.embeddings.words.weight
    assert head is not None
    texts_by_side = {"query": read_texts(arguments.asked, arguments.queries), "document": read_texts(arguments.corpus, arguments.documents)}
    encoded_sides = [encode_states(checkpoint, part, side) for side, part in texts_by_side.items()]
    sides = [tokens for tokens, _ in encoded_sides]
    with torch.no_grad():
        inputs = [head(states).requires_grad_() for _, states in encoded_sides]
    inputs += [words.detach().clone().requires_grad_(), (head.bias.detach() + arguments.bias).requires_grad_()]
    tokens, width = sum(len(side.ids) for side in sides), words.shape[1]
    fastest = product_rate(512, width, 2048, dtype)
    for pooling in [name for name in ("max", "sum") if name in arguments.heads.split(",")]:
        ways: dict[str, Way] = {"ours": lambda parts, pooling=pooling: ours(parts, sides, pooling)}
        pools = {"plain": plain(pooling), "SpladePooling": theirs(pooling, None), "SpladePooling, chunk_size 16": theirs(pooling, 16)}
        ways |= {name: lambda parts, pool=pool: from_logits(parts, sides, pool) for name, pool in pools.items()}
        many = f"{arguments.queries} queries, {arguments.documents} documents, {tokens} tokens of {width}, {len(words)} terms"
        compare_ways(
            f"Lexical, {pooling}, {arguments.dtype}: {many}", ways, inputs, 2 * tokens * width * len(words) / fastest, arguments, dtype
        )


def late_interaction(arguments: argparse.Namespace) -> None:
    """ColBERT's similarity, in float32."""
    checkpoint, representations = open_checkpoint(arguments.colbert), []
    checkpoint.architecture.eval()
    for path, count, side in ((arguments.asked, arguments.questions, "query"), (arguments.corpus, arguments.passages, "document")):
        tokens = checkpoint.tokenize(read_texts(path, count), side)
        with torch.no_grad():
            representation: Any = checkpoint.architecture(tokens)["local"]
        representations.append(representation)
    inputs = [part.vectors.clone().requires_grad_() for part in representations]

    def padded(parts: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
        return [MultiVector(vectors, text.starts).pad() for vectors, text in zip(parts, representations, strict=True)]

    def peer(parts: list[Tensor]) -> Tensor:
        (query_vectors, real), (documents, document_mask) = padded(parts)
        groups = [part.unflatten(0, (arguments.questions, -1)) for part in (documents, document_mask)]
        return contrastive(colbert_scores(query_vectors, groups[0], queries_mask=real, documents_mask=groups[1]))

    def own(parts: list[Tensor]) -> Tensor:
        query_vectors, documents = (MultiVector(vectors, text.starts) for vectors, text in zip(parts, representations, strict=True))
        return contrastive(query_vectors.scores(documents))

    def einsum(parts: list[Tensor]) -> Tensor:
        (query_vectors, real), (documents, document_mask) = padded(parts)
        return contrastive(maxsim(query_vectors, real, documents, document_mask))

    longest = [int(part.starts.diff().max()) for part in representations]
    similarity = arguments.questions * arguments.passages * longest[0] * longest[1] * 4 / 2**20
    work = 2 * inputs[0].numel() * len(inputs[1]) / product_rate(128, inputs[0].shape[1], 512, torch.float32)
    many = f"{arguments.questions} queries of {longest[0]} tokens at most, {arguments.passages} passages of {longest[1]} at most"
    title = f"Late interaction: {many}, {len(inputs[1])} tokens; the similarity is {similarity:.1f} MiB"
    compare_ways(title, {"ours": own, "einsum and amax": einsum, "colbert_scores": peer}, inputs, work, arguments, torch.float32)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("splade", "colbert", "corpus", "asked"):
        parser.add_argument(name, type=Path, metavar="queries" if name == "asked" else None)
    sizes = {"documents": 64, "queries": 8, "passages": 128, "questions": 16, "rounds": 3, "threads": 1}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", default="float32", choices=list(DTYPES))
    parser.add_argument("--bias", type=float, default=0.0, help="added to the vocabulary head's bias, for more active terms")
    parser.add_argument("--heads", default="max,sum,late")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if set(arguments.heads.split(",")) - {"late"}:
        lexical(arguments, DTYPES[arguments.dtype])
    if "late" in arguments.heads.split(","):
        late_interaction(arguments)


if __name__ == "__main__":
    main()
