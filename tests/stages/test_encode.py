"""`moeir encode`: pruning options reach later stages, windows are complete and in order, errors in threads are reported.

Memory of `moeir encode` does not grow with the corpus.
"""

import json
import threading

import torch

from moeir.representations.multivector import MultiVector
from moeir.representations.sparse import Sparse
from tests.conftest import run_in_process
from tests.representations.test_representations import to_lists
from tests.stages.conftest import measure_memory


def encode(checkpoint, corpus, output, *more):
    return run_in_process("encode", "--model", checkpoint, "--corpus", corpus, "--dtype", "float32", *more, "--output", output)


def read_counts(folder):
    return json.loads((folder / "manifest.json").read_text())["counts"]


def test_shortened_documents_are_those_of_the_whole_ones(came_checkpoint, encodings, toy, tmp_path, moeir):
    options = ("--top-k", 5, "--least-weight", 0.01, "--pool-factor", 2)
    assert encode(came_checkpoint, toy / "corpus.jsonl", tmp_path / "enc", *options).code == 0
    lexical = [Sparse.open(folder / "lexical") for folder in (tmp_path / "enc", encodings)]
    assert to_lists(lexical[0]) == to_lists(lexical[1].prune({"terms": 5, "least_weight": 0.01}))
    local = [MultiVector.open(folder / "local") for folder in (tmp_path / "enc", encodings)]
    lengths = [part.starts.diff().tolist() for part in local]
    assert lengths[0] == [-(-length // 2) for length in lengths[1]]
    assert (tmp_path / "enc/global/vectors.npy").read_bytes() == (encodings / "global/vectors.npy").read_bytes()
    short = {"terms": 5, "least_weight": 0.01, "pool_factor": 2}
    assert read_counts(tmp_path / "enc")["shortened"] == short and "shortened" not in read_counts(encodings)
    assert moeir("index", "--encodings", tmp_path / "enc", "--output", tmp_path / "idx").code == 0
    assert read_counts(tmp_path / "idx")["shortened"] == short
    assert "shortened" in moeir("info", tmp_path / "idx").stdout
    result = moeir("search", "--index", tmp_path / "idx", "--queries", toy / "test-queries.tsv", "--depth", 3, "--output", "-")
    assert result.code == 0 and len(result.stdout.splitlines()) == 3 * len((toy / "test-queries.tsv").read_text().splitlines())


def test_an_option_for_experts_that_are_not_there_is_refused(tiny_model, toy, tmp_path, moeir):
    assert moeir("init", "--model", tiny_model, "--arch", "dense", "--output", tmp_path / "dense").code == 0
    result = encode(tmp_path / "dense", toy / "corpus.jsonl", tmp_path / "enc", "--pool-factor", 2)
    assert result.code == 2 and "is for multivector experts; the checkpoint has global dense" in result.stderr
    assert not (tmp_path / "enc").exists()


def test_windows_of_any_size_keep_the_order_of_the_corpus(came_checkpoint, encodings, toy, tmp_path, monkeypatch):
    monkeypatch.setattr("moeir.stages.encode.CHUNK", 5)
    assert encode(came_checkpoint, toy / "corpus.jsonl", tmp_path / "enc", "--max-tokens", 40).code == 0
    assert (tmp_path / "enc/ids.txt").read_bytes() == (encodings / "ids.txt").read_bytes()
    for name, kind in (("lexical", Sparse), ("local", MultiVector)):
        encoded, expected = (kind.open(folder / name) for folder in (tmp_path / "enc", encodings))
        assert torch.equal(encoded.starts, expected.starts)
        for column in encoded.files:
            torch.testing.assert_close(encoded.columns()[column], expected.columns()[column], rtol=1e-3, atol=1e-3)


def test_a_fault_behind_the_first_windows_stops_it_and_what_is_whole_is_kept(came_checkpoint, toy, tmp_path, monkeypatch):
    monkeypatch.setattr("moeir.stages.encode.CHUNK", 2)
    monkeypatch.setattr("moeir.representations.encodings.FLUSH_SECONDS", 0)
    lines = (toy / "corpus.jsonl").read_text().splitlines()
    (tmp_path / "bad.jsonl").write_text("\n".join([*lines[:9], "{", *lines[9:]]) + "\n")
    result = encode(came_checkpoint, tmp_path / "bad.jsonl", tmp_path / "enc")
    assert result.code == 3 and "bad.jsonl:10: broken JSON" in result.stderr
    journal = (tmp_path / ".enc.partial/enc/resume/journal.jsonl").read_text().splitlines()
    assert json.loads(journal[-1])["texts"] == 8
    assert not [one for one in threading.enumerate() if one.name.startswith(("batches", "writing"))]


def test_a_longer_corpus_needs_no_more_memory(tiny_model_with_head, toy, tmp_path):
    arch = "came:shared_layers=2,local_dim=1024"
    start = ("init", "--model", tiny_model_with_head, "--arch", arch, "--document-length", 32)
    assert run_in_process(*start, "--output", tmp_path / "came").code == 0
    words = " ".join(json.loads(line)["text"] for line in (toy / "corpus.jsonl").read_text().splitlines()).split()
    for name, count in (("short", 256), ("long", 2048)):
        lines = (json.dumps({"_id": f"d{row}", "text": " ".join(words[row % 40 : row % 40 + 40])}) for row in range(count))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    flags = f"encode --model {tmp_path}/came --dtype float32 --corpus {tmp_path}"
    short, long = measure_memory(*(f"{flags}/{name}.jsonl --output {tmp_path}/{name}.jsonl.enc" for name in ("short", "long")))
    sizes = [(tmp_path / f"{name}.jsonl.enc/local/vectors.npy").stat().st_size for name in ("short", "long")]
    assert sizes[1] - sizes[0] > 100 * 2**20
    assert long - short < 48 * 2**20, (short, long, sizes)
