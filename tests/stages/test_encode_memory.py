"""Memory of `moeir encode` does not grow with the corpus."""

import json

from tests.conftest import run_in_process, run_in_subprocess

MEMORY_PROGRAM = """
import sys
from moeir import cli
import moeir.stages.encode as encode
encode.CHUNK = 32
model, *corpora = sys.argv[1:]
for corpus in corpora:
    assert cli._outcome(["encode", "--model", model, "--corpus", corpus, "--dtype", "float32", "--output", corpus + ".enc"]) == 0
    with open("/proc/self/status") as status:  # ru_maxrss would start at the memory of the parent process
        sys.stdout.write(next(line.split()[1] for line in status if line.startswith("VmHWM")) + "\\n")
"""


def test_a_longer_corpus_needs_no_more_memory(tiny_model_with_head, toy, tmp_path):
    arch = "came:shared_layers=2,local_dim=512"
    start = ("init", "--model", tiny_model_with_head, "--arch", arch, "--document-length", 32)
    assert run_in_process(*start, "--output", tmp_path / "came").code == 0
    words = " ".join(json.loads(line)["text"] for line in (toy / "corpus.jsonl").read_text().splitlines()).split()
    for name, count in (("short", 512), ("long", 4096)):
        lines = (json.dumps({"_id": f"d{row}", "text": " ".join(words[row % 40 : row % 40 + 40])}) for row in range(count))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    result = run_in_subprocess(tmp_path / "came", tmp_path / "short.jsonl", tmp_path / "long.jsonl", program=MEMORY_PROGRAM)
    assert result.code == 0, result.stderr
    short, long = (int(line) * 1024 for line in result.stdout.split())
    sizes = [(tmp_path / f"{name}.jsonl.enc/local/vectors.npy").stat().st_size for name in ("short", "long")]
    assert sizes[1] - sizes[0] > 100 * 2**20
    assert long - short < 48 * 2**20, (short, long, sizes)
