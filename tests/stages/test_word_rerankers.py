"""A decoder as reranker through the command line: trained by LCE, reranking, and teaching a retriever."""

import json

import pytest

from tests.conftest import run_in_process, run_moeir
from tests.processes import read_metrics

TRAINING = ("--query-length", 32, "--document-length", 240, "--objective", "lce", "--negatives", 2, "--batch-size", 2, "--seed", 3)
YES_NO = "cross-encoder:head=yes-no"


@pytest.mark.parametrize(("arch", "rate"), [(YES_NO, 1e-2), (f"{YES_NO},adapters=8", 2e-2)])
def test_a_decoder_learns_to_rank_positives_first(arch, rate, tiny_decoder, examples, texts, tmp_path):
    """Trained on four queries it gives their positives the best scores."""
    model = ("--model", tiny_decoder, "--arch", arch, "--epochs", 5, "--learning-rate", rate)
    run_moeir("finetune", *model, *TRAINING, "--train", examples, *texts, "--output", tmp_path / "ce")
    losses = [line["loss"] for line in read_metrics(tmp_path / "ce")]
    assert sum(losses[-4:]) < 0.5 * sum(losses[:4])
    result = run_moeir("rerank", "--train", examples, "--model", tmp_path / "ce", *texts, "--dtype", "float32")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(rows) == 4 and all(row["positive_scores"][0] > max(row["negative_scores"]) for row in rows)


def test_tokens_of_pairs_in_another_template_are_not_taken_from_the_cache(tiny_decoder, examples, texts, tmp_path):
    flags = ("finetune", "--model", tiny_decoder, *TRAINING, "--steps", 1, "--train", examples, *texts)
    for number, template in enumerate(("{query} | {document} :", "{query} ? {document} :", "<{query}> | {document} :")):
        output = ("--cache", tmp_path / "cache", "--output", tmp_path / f"ce{number}")
        run_moeir(*flags, "--arch", YES_NO, "--template", template, *output)
        assert len([path for path in (tmp_path / "cache").iterdir() if path.is_dir()]) == number + 1
    assert run_in_process(*flags, "--arch", "dense:pooling=last", "--template", "x", "--output", tmp_path / "x").code == 2
