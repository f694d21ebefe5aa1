"""A device that is named is the only one that a stage touches: on a machine with two, `--device cuda:1` leaves cuda:0 alone."""

import pytest
import torch

from moeir.backbones.device import select_device, set_determinism

pytest.importorskip("tests.device.guard", reason="the device that these tests run on is not there")
NAMED, OTHER = "cuda:1", "cuda:0"
LENGTHS = ("--query-length", 16, "--document-length", 32)


@pytest.fixture
def on_the_second(moeir_on):
    """`on_the_second("encode", …)`: a stage that ends well there, and what it has said."""
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device")

    def run(*arguments):
        for device in (NAMED, OTHER):
            torch.cuda.reset_peak_memory_stats(device)
        before = [torch.cuda.max_memory_allocated(device) for device in (NAMED, OTHER)]
        result = moeir_on(*arguments, on=NAMED)
        assert result.code == 0, result.stderr
        assert torch.cuda.max_memory_allocated(NAMED) > before[0] and torch.cuda.max_memory_allocated(OTHER) == before[1]
        return result.stderr

    return run


def test_encoding_says_its_number_format_and_stays_there(on_the_second, came_checkpoint, toy, tmp_path):
    command = ("encode", "--model", came_checkpoint, "--corpus", toy / "corpus.jsonl", "--output")
    assert "dtype: bfloat16; cuda:1 (" in on_the_second(*command, tmp_path / "half")
    assert "dtype: float32" in on_the_second(*command, tmp_path / "whole", "--dtype", "float32")


def test_searching_and_reranking_stay_there(on_the_second, came_checkpoint, index, toy, tmp_path):
    on_the_second("search", "--index", index, "--queries", toy / "test-queries.tsv", "--depth", 5, "--output", tmp_path / "run.trec")
    texts = ("--queries", toy / "test-queries.tsv", "--corpus", toy / "corpus.jsonl", "--run", tmp_path / "run.trec")
    on_the_second("rerank", "--model", came_checkpoint, *texts, "--output", tmp_path / "again.trec")


def test_written_queries_stay_there(on_the_second, t5_model, toy, tmp_path):
    corpus = ("--corpus", toy / "corpus.jsonl")
    on_the_second("generate-queries", "--model", t5_model, *corpus, "--max-output", 4, "--output", tmp_path / "queries.jsonl")


def test_trainings_stay_there(on_the_second, tiny_model_without_dropout, toy, tmp_path):
    example = '{"query_id": "%s", "positive_ids": ["owl"], "negative_ids": ["cat"]}\n'
    (tmp_path / "train.jsonl").write_text("".join(example % name for name in ("t1", "t2", "t3")))
    begin = ("--model", tiny_model_without_dropout, "--corpus", toy / "corpus.jsonl", "--steps", 2, "--batch-size", 2, *LENGTHS)
    learn = ("--train", tmp_path / "train.jsonl", "--queries", toy / "train-queries.jsonl", "--negatives", 1)
    came = ("--arch", "came:shared_layers=2,local_dim=8", "--objective", "competitive")
    on_the_second("finetune", *begin, *learn, *came, "--output", tmp_path / "tuned")
    on_the_second("pretrain", *begin, "--objective", "mlm", "--output", tmp_path / "trained")


def test_a_training_on_the_cpu_leaves_no_warnings_for_the_device():
    """A CPU's work is deterministic and warns where it could not be; on CUDA that would be a warning at every product."""
    set_determinism("cpu", deterministic=False)
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    select_device("cuda")
    assert not torch.are_deterministic_algorithms_enabled()
