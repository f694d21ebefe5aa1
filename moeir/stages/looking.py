"""Analyses of `moeir analyze` that encode or tokenize texts."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeir import variants
from moeir.errors import UsageError
from moeir.stages.comparing import evaluate_per_query

if TYPE_CHECKING:
    import numpy as np
    import torch

    from moeir.analysis.result import AnalysisResult
    from moeir.analysis.router_usage import RouterUsage
    from moeir.architectures.checkpoint import RetrievalModel
    from moeir.records.texts import Text
    from moeir.stages.analyze import Analyze

CHUNK = 1024
SIDES = (("query", "queries"), ("document", "corpus"))


def analyze_usage(stage: "Analyze") -> "AnalysisResult":
    """Expert usage per router."""
    from moeir.analysis.result import AnalysisResult, Plot

    checkpoint, dtype = _open_model(stage)
    if not checkpoint.encode(["?"]).routing:
        raise UsageError(f"{stage.model}: {_explain_no_router(checkpoint)}; there is no usage to count")
    names = ["side", "router", "of", "expert", "chosen", "share", "probability", "entropy", "used"]
    rows: list[list[Any]] = []
    for side, path in _text_files(stage):
        for router, router_usage in _count_usage(stage, checkpoint, dtype, path, side).items():
            rows += [[side, router, *row] for row in router_usage.rows(stage.threshold)]
    marks = [(row[1], row[0], row[3], row[5]) for row in rows if row[3] != "all"]
    return AnalysisResult(names, rows, Plot("bars", marks, x_label="expert", y_label="share of decisions"))


def _count_usage(stage: "Analyze", checkpoint: "RetrievalModel", dtype: "torch.dtype", path: Path, side: str) -> "dict[str, RouterUsage]":
    """Each router's usage over the texts of a file, chunk by chunk."""
    from moeir.analysis.router_usage import RouterUsage
    from moeir.backbones.device import autocast

    usage_by_router: dict[str, RouterUsage] = {}
    with autocast(dtype, str(checkpoint.device)):
        for chunk in _text_chunks(path, "routing"):
            for router, output in checkpoint.encode(chunk, side, max_tokens=stage.max_tokens).routing.items():
                chunk_usage = RouterUsage.from_probabilities(output.probabilities.float().cpu().numpy(), len(output))
                usage_by_router[router] = usage_by_router[router] + chunk_usage if router in usage_by_router else chunk_usage
    return usage_by_router


def analyze_divergence(stage: "Analyze") -> "AnalysisResult":
    """KL and JS divergence between queries and their relevant documents."""
    from moeir.analysis.divergence import estimate_divergences, sample_pairs
    from moeir.analysis.result import AnalysisResult, Plot

    assert stage.queries is not None and stage.corpus is not None and stage.qrels is not None
    checkpoint, dtype = _open_model(stage)
    expert = _select_dense_expert(stage, checkpoint.architecture.representation_kinds)
    pairs = sample_pairs(stage.queries, stage.corpus, stage.qrels, stage.pairs, stage.seed)
    sides = zip(("query", "document"), zip(*pairs, strict=True), strict=True)
    queries, documents = (_dense_vectors(stage, checkpoint, dtype, expert, contents, side) for side, contents in sides)
    kl, js = estimate_divergences(queries, documents, bandwidth=stage.bandwidth)
    title = "divergence of queries and documents"
    picture = Plot("bars", [(title, expert, "KL", kl), (title, expert, "JS", js)])
    return AnalysisResult(["expert", "pairs", "KL", "JS"], [[expert, len(pairs), kl, js]], picture, number_format=".2e")


def analyze_lengths(stage: "Analyze") -> "AnalysisResult":
    """Length histograms of queries and documents, in tokens of a model or in words."""
    from moeir.analysis import histograms
    from moeir.analysis.result import AnalysisResult, Plot

    count = _token_counter(stage)
    unit = "words" if stage.model is None else "tokens"
    rows: list[list[Any]] = []
    marks: list[tuple[Any, ...]] = []
    for side, path in _text_files(stage):
        length_counts = histograms.count_lengths(size for chunk in _text_chunks(path, "counting") for size in count(chunk))
        rows += [[side, unit, *one] for one in histograms.length_histogram(length_counts, stage.classes)]
        median, p95 = (histograms.length_quantile(length_counts, share) for share in (0.5, 0.95))
        title = f"{side}: half have {median} {unit} or fewer, 95 % {p95}"
        marks += [(title, side, low, high, number) for one, _, low, high, number, _ in rows if one == side]
    return AnalysisResult(["side", "unit", "from", "to", "texts", "share"], rows, Plot("steps", marks, x_label=unit, y_label="texts"))


def _token_counter(stage: "Analyze") -> Any:
    """A function that counts the tokens or words of each text."""
    if stage.model is None:
        return lambda contents: [len(content.split()) for content in contents]
    from moeir.backbones.tokenizer import TextTokenizer

    reader = TextTokenizer(stage.model)
    return lambda contents: [len(ids) for ids in reader.encode(contents)]


def analyze_projection(stage: "Analyze") -> "AnalysisResult":
    """Queries and documents projected to two or three dimensions, with the group that colours them in a plot."""
    from moeir.analysis.result import AnalysisResult, Plot

    checkpoint, dtype = _open_model(stage)
    expert = _select_dense_expert(stage, checkpoint.architecture.representation_kinds)
    texts: list[tuple[str, Text]] = []
    for side, path in _text_files(stage):
        texts += [(side, text) for text in _sample_texts(path, stage)]
    if len(texts) <= stage.dimensions:
        raise UsageError(f"analyze projection: expected more than {stage.dimensions} texts, found {len(texts)}")
    vectors, router_choices = _encode_dense(stage, checkpoint, dtype, expert, texts)
    project = variants.bind_variant("analysis.projection", stage.projection)
    points = project(vectors, stage.dimensions, stage.seed).tolist()
    groups = _color_labels(stage, texts, router_choices)
    rows = [[side, text.id, group, *point] for (side, text), group, point in zip(texts, groups, points, strict=True)]
    marks = [(f"{stage.projection} of {expert}", group, *point) for (_, _, group, *point) in sorted(rows, key=lambda row: str(row[2]))]
    return AnalysisResult(["side", "id", "group", *"xyz"[: stage.dimensions]], rows, Plot("points", marks))


def _sample_texts(path: Path, stage: "Analyze") -> "list[Text]":
    """A random sample of the texts of a file, in file order."""
    import random

    from moeir.records import texts

    all_texts = list(texts.read_texts(path))
    if len(all_texts) <= stage.sample:
        return all_texts
    return [all_texts[index] for index in sorted(random.Random(stage.seed).sample(range(len(all_texts)), stage.sample))]


def _encode_dense(
    stage: "Analyze", checkpoint: "RetrievalModel", dtype: "torch.dtype", expert: str, texts: "Sequence[tuple[str, Text]]"
) -> "tuple[np.ndarray[Any, Any], list[str | None]]":
    """The vectors of texts [N, D], and each text's expert in the first router that routes whole texts, or None."""
    import numpy as np

    from moeir.backbones.device import autocast
    from moeir.representations.dense import Dense

    vectors, router_choices = [], list[str | None]()
    for side, _ in SIDES:
        contents = [text.content for text_side, text in texts if text_side == side]
        for first in range(0, len(contents), CHUNK):
            chunk = contents[first : first + CHUNK]
            with autocast(dtype, str(checkpoint.device)):
                encoded = checkpoint.encode(chunk, side, max_tokens=stage.max_tokens)
            representation = encoded[expert]
            assert isinstance(representation, Dense)
            vectors.append(representation.vectors.float().cpu().numpy())
            text_routers = [output for output in encoded.routing.values() if len(output.probabilities) == len(chunk)]
            router_choices += (
                [f"expert {expert_number}" for expert_number in text_routers[0].probabilities.argmax(1).tolist()]
                if text_routers
                else [None] * len(chunk)
            )
    return np.concatenate(vectors), router_choices


def _color_labels(stage: "Analyze", texts: "Sequence[tuple[str, Text]]", router_choices: Sequence[str | None]) -> list[str]:
    """The colour group of each text: with runs, the best run of a query; else the routed expert, else the side."""
    if stage.run:
        from moeir.analysis.wins import find_winner

        values = evaluate_per_query(stage)
        judged_queries = next(iter(values.values()))
        return [find_winner(values, text.id) if side == "query" and text.id in judged_queries else side for side, text in texts]
    return [choice or side for choice, (side, _) in zip(router_choices, texts, strict=True)]


def _dense_vectors(
    stage: "Analyze", checkpoint: "RetrievalModel", dtype: "torch.dtype", expert: str, contents: Sequence[str], side: str
) -> "np.ndarray[Any, Any]":
    from moeir.backbones.device import autocast
    from moeir.representations.dense import Dense

    with autocast(dtype, str(checkpoint.device)):
        representation = checkpoint.encode(contents, side, max_tokens=stage.max_tokens)[expert]
    assert isinstance(representation, Dense)
    return representation.vectors.float().cpu().numpy()


def _select_dense_expert(stage: "Analyze", kinds: dict[str, str]) -> str:
    """The dense expert that --expert names, or the only one."""
    dense = [name for name, kind in kinds.items() if kind == "dense"]
    if stage.expert is None and len(dense) == 1:
        return dense[0]
    if stage.expert in dense:
        return str(stage.expert)
    expectation = "--expert: expected one of" if stage.expert is None else f"--expert {stage.expert}: expected"
    raise UsageError(f"{expectation} {', '.join(dense) or 'the dense experts, but there is none'} ({stage.model})")


def _open_model(stage: "Analyze") -> "tuple[RetrievalModel, torch.dtype]":
    """The checkpoint on its device, and the dtype to compute in."""
    from moeir.architectures.checkpoint import open_checkpoint
    from moeir.backbones.device import select_device, select_dtype

    assert stage.model is not None
    device = select_device(stage.device)
    return open_checkpoint(stage.model, device), select_dtype(stage.dtype, device)


def _text_files(stage: "Analyze") -> list[tuple[str, Path]]:
    """The sides whose texts are given, with their files."""
    paths = [(side, getattr(stage, name)) for side, name in SIDES]
    return [(side, path) for side, path in paths if path is not None]


def _text_chunks(path: Path, label: str) -> Iterator[list[str]]:
    """The texts of a file in chunks of `CHUNK`."""
    from moeir import console
    from moeir.records import texts

    contents = (text.content for text in console.progress(texts.read_texts(path, keep_empty=True), label))
    while chunk := list(islice(contents, CHUNK)):
        yield chunk


def _explain_no_router(checkpoint: "RetrievalModel") -> str:
    """Why the checkpoint has no router output."""
    from moeir.mixtures.embedding import EmbeddingMixture
    from moeir.mixtures.feedforward import RoutedFeedForward

    name, modules = checkpoint.spec.split(":")[0], list(checkpoint.architecture.modules())
    if any(isinstance(module, RoutedFeedForward) for module in modules):
        return f"the experts of this {name} are chosen by role, queries one and documents another"
    if any(isinstance(module, EmbeddingMixture) for module in modules):
        return f"the experts of this {name} are chosen at random"
    return f"{name} has no router"
