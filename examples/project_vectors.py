"""Vectors of a dense expert in two or three dimensions, a panel for each checkpoint: pairs of texts, or a query and its hits.

    python examples/project_vectors.py --model ckpt/a --model ckpt/b --queries queries.jsonl --corpus corpus.jsonl --qrels dev.tsv \
           --pairs 400 --output pairs.svg
    python examples/project_vectors.py --model ckpt/sbmoe --before-mixture --queries queries.jsonl --corpus corpus.jsonl --qrels dev.tsv \
           --run run.trec --query q1 --dimensions 3 --output hits.svg

A line links each pair. Of a query and its hits the query is a cross, relevant documents are ringed, and colours are the experts that a
gate selects; --before-mixture adds a panel of the vectors before SB-MoE's block.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from divergence import encode_texts, sample_pairs, select_dense_expert
from figures import COLOURS, STYLE, save_figure
from matplotlib.figure import Figure
from sklearn.manifold import TSNE

import moeir
from moeir.backbones.device import select_device
from moeir.errors import MoeirError, UsageError
from moeir.records import qrels, runs, texts


def read_sides(options: argparse.Namespace) -> tuple[list[texts.Text], list[texts.Text]]:
    """The queries and documents to project, row by row where they are pairs."""
    if options.pairs is not None:
        queries, documents = zip(*sample_pairs(options.queries, options.corpus, options.qrels, options.pairs, options.seed), strict=True)
        return list(queries), list(documents)
    names = runs.read_run(options.run).documents_of(options.query)[: options.sample]
    query, by_id = texts.read_texts_by_id(options.queries).get(options.query), texts.read_texts_by_id(options.corpus, keep_empty=True)
    if query is None or not names or not by_id.keys() >= set(names):
        raise UsageError(f"--query {options.query}: expected its text in --queries, and hits in --run whose texts are in --corpus")
    return [query], [by_id[name] for name in names]


def project(vectors: Any, options: argparse.Namespace) -> Any:
    """t-SNE over cosine distances, from the principal components: vectors of length 1 [N, D] -> [N, 2 or 3]."""
    if not 1 <= options.perplexity < len(vectors):
        raise UsageError(f"--perplexity {options.perplexity:g}: expected 1 to less than the number of points, {len(vectors)}")
    rate = max(10.0, len(vectors) / 48)  # Belkina et al. 2019 in scikit-learn's scale, whose minimum, 50, scatters few
    tsne = TSNE(options.dimensions, perplexity=options.perplexity, init="pca", learning_rate=rate, random_state=options.seed)
    return tsne.fit_transform(vectors)


def encode_panels(options: argparse.Namespace, queries: list[texts.Text], documents: list[texts.Text]) -> dict[str, Any]:
    """By title: the points of queries and then documents [N, 2 or 3], and the expert of each document, or `document`."""
    panels = dict[str, Any]()
    for path in options.model:
        model = moeir.open_checkpoint(path, select_device(options.device))
        expert, mixture, titles = select_dense_expert(model, options.expert), model.architecture.mixture, [path.name]
        if options.before_mixture:
            if mixture is None:
                raise UsageError(f"--before-mixture: {path} has no gated block over its vector; sbmoe has")
            titles = [f"{path.name}, before the experts", f"{path.name}, after the experts"]
        for title in titles:
            model.architecture.mixture = None if title == titles[0] and options.before_mixture else mixture
            (first, _), (second, choices) = (
                encode_texts(model, side, name, expert) for name, side in (("query", queries), ("document", documents))
            )
            panels[title] = project(np.concatenate([first, second]), options), choices
    return panels


def draw(panels: dict[str, Any], options: argparse.Namespace, count: int, relevant: list[bool]) -> None:
    """One figure of all panels; the first `count` points of each are queries."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.5 * len(panels), 5), layout="constrained")
        projection: dict[str, Any] = {"projection": "3d"} if options.dimensions == 3 else {}
        all_axes = figure.subplots(1, len(panels), squeeze=False, subplot_kw=projection)[0]
        for axes, (title, (points, choices)) in zip(all_axes, panels.items(), strict=True):
            queries, documents, names = points[:count], points[count:], sorted(set(choices))
            colours = [COLOURS[1 + names.index(choice)] for choice in choices]
            if options.pairs is not None:
                for ends in zip(queries, documents, strict=True):
                    axes.plot(*zip(*ends, strict=True), color="#9a9a9a", linewidth=0.5, alpha=0.5)
                axes.scatter(*queries.T, s=14, color=COLOURS[0])
            else:
                axes.scatter(*queries.T, s=112, marker="X", color="black", zorder=5)
                axes.scatter(*documents[relevant].T, s=84, facecolors="none", edgecolors="#d00000")
            axes.scatter(*documents.T, s=14, alpha=0.65, linewidths=0, color=colours)
            axes.set_title(title)
        save_figure(figure, options.output)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, action="append", required=True)
    for flag in ("--queries", "--corpus", "--qrels", "--output"):
        parser.add_argument(flag, type=Path, required=True)
    parser.add_argument("--pairs", type=int, help="pairs of a query and its best document")
    parser.add_argument("--run", type=Path, help="instead of pairs: the run whose hits of --query are projected")
    parser.add_argument("--query")
    parser.add_argument("--sample", type=int, default=1000, help="hits of --query")
    parser.add_argument("--before-mixture", action="store_true")
    parser.add_argument("--expert")
    parser.add_argument("--perplexity", type=float, default=30.0, help="of t-SNE: roughly the number of neighbours")
    parser.add_argument("--dimensions", type=int, choices=(2, 3), default=2)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(arguments)
    if (options.pairs is None) == (options.run is None or options.query is None):
        parser.error("expected --pairs, or --run and --query")
    queries, documents = read_sides(options)
    grades = {} if options.query is None else qrels.read_qrels(options.qrels).get(options.query, {})
    draw(encode_panels(options, queries, documents), options, len(queries), [grades.get(text.id, 0) > 0 for text in documents])


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except MoeirError as problem:
        sys.exit(f"error: {problem}")
