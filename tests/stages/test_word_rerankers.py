"""A decoder as reranker through the command line: trained by LCE, reranking, and teaching a retriever."""

import json

import pytest

LENGTHS = ("--query-length", 32, "--document-length", 240)
TRAINING = ("--objective", "lce", "--negatives", 2, "--batch-size", 2, "--epochs", 8, "--learning-rate", 1e-2, "--seed", 3)


@pytest.mark.parametrize("arch", ["cross-encoder:head=yes-no", "cross-encoder:head=yes-no,adapters=8"])
def test_a_decoder_learns_to_rank_positives_first(arch, tiny_decoder, examples, texts, tmp_path, moeir):
    """Trained on four queries it gives their positives the best scores."""
    result = moeir(
        "finetune", "--model", tiny_decoder, "--arch", arch, *LENGTHS, *TRAINING, "--train", examples, *texts, "--output", tmp_path / "ce"
    )
    assert result.code == 0, result.stderr
    losses = [json.loads(line)["loss"] for line in (tmp_path / "ce/metrics.jsonl").read_text().splitlines()]
    assert sum(losses[-4:]) < 0.5 * sum(losses[:4])
    result = moeir("rerank", "--train", examples, "--model", tmp_path / "ce", *texts, "--dtype", "float32")
    assert result.code == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(rows) == 4 and all(row["positive_scores"][0] > max(row["negative_scores"]) for row in rows)


def test_tokens_of_pairs_in_another_template_are_not_taken_from_the_cache(tiny_decoder, examples, texts, tmp_path, moeir):
    arch = ("--arch", "cross-encoder:head=yes-no")
    flags = ("finetune", "--model", tiny_decoder, *arch, *LENGTHS, *TRAINING[:6], "--train", examples, *texts)
    for number, template in enumerate(("{query} | {document} :", "{query} ? {document} :", "<{query}> | {document} :")):
        result = moeir(*flags, "--template", template, "--cache", tmp_path / "cache", "--output", tmp_path / f"ce{number}")
        assert result.code == 0, result.stderr
        assert len([path for path in (tmp_path / "cache").iterdir() if path.is_dir()]) == number + 1
    assert moeir(*flags[:3], "--arch", "dense:pooling=last", *flags[5:], "--template", "x", "--output", tmp_path / "x").code == 2
