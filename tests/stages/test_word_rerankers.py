"""A decoder as reranker through the command line: trained by LCE, reranking, and teaching a retriever."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from moeir.records import runs
from tests.conftest import CommandResult

Moeir = Callable[..., CommandResult]
LENGTHS = ("--query-length", 32, "--document-length", 240)
TRAINING = ("--objective", "lce", "--negatives", 2, "--batch-size", 2, "--epochs", 8, "--learning-rate", 1e-2, "--seed", 3)


@pytest.mark.parametrize("arch", ["cross-encoder:head=yes-no", "cross-encoder:head=yes-no,adapters=8"])
def test_a_decoder_learns_to_rerank_and_writes_its_scores_into_examples(
    arch: str, tiny_decoder: Path, examples: Path, texts: tuple[object, ...], tmp_path: Path, moeir: Moeir
) -> None:
    """Trained on four queries it ranks their positives first; the scores in the examples are those of a reranked run."""
    result = moeir(
        "finetune", "--model", tiny_decoder, "--arch", arch, *LENGTHS, *TRAINING, "--train", examples, *texts, "--output", tmp_path / "ce"
    )
    assert result.code == 0, result.stderr
    losses = [json.loads(line)["loss"] for line in (tmp_path / "ce/metrics.jsonl").read_text().splitlines()]
    assert sum(losses[-4:]) < 0.5 * sum(losses[:4])
    rows = [json.loads(line) for line in examples.read_text().splitlines()]
    with open(tmp_path / "run.trec", "w") as file:
        for row in rows:
            file.writelines(
                f"{row['query_id']} Q0 {name} 1 {number} x\n" for number, name in enumerate(row["positive_ids"] + row["negative_ids"])
            )
    flags = ("--model", tmp_path / "ce", *texts, "--dtype", "float32", "--output")
    result = moeir("rerank", "--run", tmp_path / "run.trec", *flags, tmp_path / "reranked.trec")
    assert result.code == 0, result.stderr
    reranked = runs.read_run(tmp_path / "reranked.trec")
    assert [reranked.documents_of(row["query_id"])[0] for row in rows] == [row["positive_ids"][0] for row in rows]
    assert moeir("rerank", "--train", examples, *flags, tmp_path / "scored.jsonl").code == 0
    for line in (tmp_path / "scored.jsonl").read_text().splitlines():
        row, hits = json.loads(line), dict(reranked.hits(json.loads(line)["query_id"]))
        assert row["positive_scores"] + row["negative_scores"] == pytest.approx(
            [hits[name] for name in row["positive_ids"] + row["negative_ids"]], abs=1e-5
        )


def test_tokens_of_pairs_in_another_template_are_not_taken_from_the_cache(
    tiny_decoder: Path, examples: Path, texts: tuple[object, ...], tmp_path: Path, moeir: Moeir
) -> None:
    arch = ("--arch", "cross-encoder:head=yes-no")
    flags = ("finetune", "--model", tiny_decoder, *arch, *LENGTHS, *TRAINING[:6], "--train", examples, *texts)
    for number, template in enumerate(("{query} | {document} :", "{query} ? {document} :", "<{query}> | {document} :")):
        result = moeir(*flags, "--template", template, "--cache", tmp_path / "cache", "--output", tmp_path / f"ce{number}")
        assert result.code == 0, result.stderr
        assert len([path for path in (tmp_path / "cache").iterdir() if path.is_dir()]) == number + 1
    assert moeir(*flags[:3], "--arch", "dense:pooling=last", *flags[5:], "--template", "x", "--output", tmp_path / "x").code == 2
