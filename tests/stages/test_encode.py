"""`moeir encode`: pruning options reach later stages, windows are complete and in order, errors in threads are reported.

What only a new process shows: the memory of `moeir encode` and `export` does not grow with the collection, and nothing is compiled.
"""

import json
import threading
from pathlib import Path

import torch

from moeir.artifacts import manifests
from moeir.representations.multivector import MultiVector
from moeir.representations.sparse import Sparse
from tests.conftest import run_in_subprocess
from tests.representations.test_representations import to_lists
from tests.split_encodings import write_encodings

FRESH_PROCESS = """
import shlex, sys
from moeir import cli
from moeir.stages import encode

encode.CHUNK = 32
for command in sys.argv[1:]:
    assert cli._exit_code(shlex.split(command)) == 0
    with open("/proc/self/status") as status:  # ru_maxrss would start at the memory of the parent process
        print(next(line.split()[1] for line in status if line.startswith("VmHWM")))
assert sys.modules["moeir.kernels.numba_cache"].read_compile_seconds() == 0
assert "torch._dynamo" not in sys.modules  # a second's import
"""


ENCODE = "encode --model came --dtype float32 --output new --corpus"


def test_shortened_documents_are_those_of_the_whole_ones(encodings, work_folder, run):
    run(f"{ENCODE} toy/corpus.jsonl --top-k 5 --least-weight 0.01 --pool-factor 2")
    lexical = [Sparse.open(folder / "lexical") for folder in (Path("new"), encodings)]
    assert to_lists(lexical[0]) == to_lists(lexical[1].prune({"terms": 5, "least_weight": 0.01}))
    local = [MultiVector.open(folder / "local") for folder in (Path("new"), encodings)]
    lengths = [part.starts.diff().tolist() for part in local]
    assert lengths[0] == [-(-length // 2) for length in lengths[1]]
    assert Path("new/global/vectors.npy").read_bytes() == (encodings / "global/vectors.npy").read_bytes()
    run("index --encodings new --output new-idx")
    for name in ("new", "new-idx"):
        assert manifests.read_counts(Path(name))["shortened"] == {"terms": 5, "least_weight": 0.01, "pool_factor": 2}
    assert "shortened" not in manifests.read_counts(encodings) and "shortened" in run("info new-idx").stdout
    queries = Path("toy/test-queries.tsv")
    result = run(f"search --index new-idx --queries {queries} --depth 3")
    assert len(result.stdout.splitlines()) == 3 * len(queries.read_text().splitlines())


def test_an_option_for_experts_that_are_not_there_is_refused(work_folder, run, refuse):
    run("init --model tiny --arch dense --output dense")
    words = "is for multivector experts; the checkpoint has global dense"
    refuse(2, words, "encode --model dense --corpus toy/corpus.jsonl --pool-factor 2 --output new")
    assert not Path("new").exists()


def test_windows_of_any_size_keep_the_order_of_the_corpus(encodings, work_folder, run, monkeypatch):
    monkeypatch.setattr("moeir.stages.encode.CHUNK", 5)
    run(f"{ENCODE} toy/corpus.jsonl --max-tokens 40")
    assert Path("new/ids.txt").read_bytes() == (encodings / "ids.txt").read_bytes()
    for name, kind in (("lexical", Sparse), ("local", MultiVector)):
        encoded, expected = (kind.open(folder / name) for folder in (Path("new"), encodings))
        assert torch.equal(encoded.starts, expected.starts)
        for column in encoded.files:
            torch.testing.assert_close(encoded.columns()[column], expected.columns()[column], rtol=1e-3, atol=1e-3)


def test_a_fault_behind_the_first_windows_stops_it_and_what_is_whole_is_kept(work_folder, refuse, monkeypatch):
    monkeypatch.setattr("moeir.stages.encode.CHUNK", 2)
    monkeypatch.setattr("moeir.representations.encodings.FLUSH_SECONDS", 0)
    lines = Path("toy/corpus.jsonl").read_text().splitlines()
    Path("bad.jsonl").write_text("\n".join([*lines[:9], "{", *lines[9:]]) + "\n")
    refuse(3, "bad.jsonl:10: broken JSON", f"{ENCODE} bad.jsonl")
    journal = Path(".new.partial/new/resume/journal.jsonl").read_text().splitlines()
    assert json.loads(journal[-1])["texts"] == 8
    assert not [one for one in threading.enumerate() if one.name.startswith(("batches", "writing"))]


def test_longer_collections_need_no_more_memory_and_nothing_is_compiled_or_loads_a_compiler(work_folder, tiny_model_with_head, run):
    words = " ".join(json.loads(line)["text"] for line in Path("toy/corpus.jsonl").read_text().splitlines()).split()
    ids = manifests.read_lines(Path("enc/ids.txt"))
    for name, texts, copies in (("short", 256, 1), ("long", 1184, 400)):
        lines = (json.dumps({"_id": f"d{row}", "text": " ".join(words[row % 40 : row % 40 + 40])}) for row in range(texts))
        Path(f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        rows = list(range(len(ids))) * copies
        write_encodings(Path("enc"), Path(f"{name}.enc"), rows, [f"{ids[row]}-{number}" for number, row in enumerate(rows)])
    run(f"init --model {tiny_model_with_head} --arch came:shared_layers=2,local_dim=2048 --document-length 32 --output wide")
    commands = [
        *(f"export --to milvus --encodings {name}.enc --output {name}.export" for name in ("short", "long")),
        *("encode --model came --corpus toy/corpus.jsonl --output few", "index --encodings few --output few-idx"),
        "search --index few-idx --queries toy/test-queries.tsv --output runs",
        *(f"encode --model wide --dtype float32 --corpus {name}.jsonl --output {name}.wide" for name in ("short", "long")),
    ]
    result = run_in_subprocess(*commands, program=FRESH_PROCESS, NUMBA_CACHE_DIR=str(work_folder / "cache"))  # which is empty
    assert result.code == 0 and Path("runs/fused.trec").exists(), result.stderr
    exported, exported_more, *_, encoded, encoded_more = (int(line) * 1024 for line in result.stdout.split())
    size = sum(file.stat().st_size for file in Path("long.export").rglob("*.jsonl"))
    assert size > 10 * 2**20 and exported_more - exported < size / 2, (exported, exported_more, size)
    sizes = [Path(f"{name}.wide/local/vectors.npy").stat().st_size for name in ("short", "long")]
    assert sizes[1] - sizes[0] > 100 * 2**20 and encoded_more - encoded < 48 * 2**20, (encoded, encoded_more, sizes)
