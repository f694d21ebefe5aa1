import json
import shutil

import pytest


@pytest.fixture(scope="module")
def moat(tmp_path_factory, tiny_model_with_head, moeir):
    """A checkpoint whose experts are chosen by role."""
    output = tmp_path_factory.mktemp("info") / "mote"
    lengths = ("--query-length", 16, "--document-length", 32, "--query-prefix", "query: ")
    assert moeir("init", "--model", tiny_model_with_head, "--arch", "mote:every=1", *lengths, "--output", output).code == 0
    return output


def test_a_checkpoint_says_what_it_is_and_costs(moat, moeir):
    result = moeir("info", moat)
    assert (result.code, result.stderr) == (0, "")
    facts, reading, experts, parts, cost = result.stdout.split("\n\n")
    total = json.loads((moat / "moeir.json").read_text())["parameters"]
    rows = dict(line.split(maxsplit=1) for line in facts.splitlines())
    assert rows["checkpoint"] == f"{moat} (made by moeir init)" and rows["parameters"] == f"{total:,}"
    assert rows["architecture"].startswith("mote:encoders=mote,every=1,")
    assert [line.split() for line in reading.splitlines()[2:]] == [["query", "query:", "16"], ["document", "''", "32"]]
    assert [line.split()[:3] for line in experts.splitlines()[2:]] == [["global", "dense", "1"], ["lexical", "sparse", "1"]]
    layers = 2 * (64 * 32 + 64 + 32 * 64 + 32 + 2 * 32)  # two of four layers have experts of their own
    by_part = {line.split("  ")[0]: line.split()[-1] for line in parts.splitlines()[2:]}
    assert by_part["expert 0"] == by_part["expert 1"] == f"{layers:,}"
    assert [line.split()[:3] for line in cost.splitlines()[2:]] == [[side, length, f"{total - layers:,}"]
                                                                   for side, length in (("query", "16"), ("document", "32"))]  # fmt: skip


def test_the_same_as_json(moat, moeir):
    facts = json.loads(moeir("info", moat, "--form", "json").stdout)
    assert (facts["kind"], facts["stage"], facts["encoder"]["layers"]) == ("checkpoint", "init", 4)
    assert facts["reading"]["query"] == {"prefix": "query: ", "tokens": 16}
    assert facts["cost"]["document"]["flops_per_text"] == 32 * facts["cost"]["document"]["flops_per_token"]
    assert facts["bytes"]["model.safetensors"] == (moat / "model.safetensors").stat().st_size
    assert facts["bytes"]["all"] == sum(file.stat().st_size for file in moat.iterdir() if file.name != "manifest.json")


def test_any_artifact_says_what_its_manifest_says(encodings, index, tmp_path, toy, moeir):
    result = moeir("info", encodings).stdout
    assert result.splitlines()[0].split("  ")[0] == "encodings" and "(made by moeir encode)" in result
    assert "lexical sparse, local multivector, global dense" in result
    sizes = [line.split()[2] for line in result.splitlines() if line.startswith("bytes of")]
    assert sizes == ["global", "ids.txt", "lexical", "local", "all"]
    assert "lexical inverted, local maxsim, global flat" in moeir("info", index).stdout
    assert ["keep-empty", "False"] in [line.split() for line in result.splitlines()]
    assert json.loads(moeir("info", index, "--form", "json").stdout)["counts"]["texts"] == 12
    run = tmp_path / "one.trec"
    assert moeir("search", "--index", index, "--queries", toy / "test-queries.tsv", "--depth", 3, "--output", run).code == 0
    assert moeir("info", run).stdout.startswith("run ") and "(made by moeir search)" in moeir("info", run).stdout


def test_what_says_nothing_of_itself_is_refused_in_a_line(tiny_model, toy, tmp_path, moeir):
    for path, words in (
        (tiny_model, f"plain weights, not a checkpoint; moeir init --model {tiny_model}"),
        (tmp_path / "absent", "no such file or folder"),
        (toy, f"{toy}: moeir did not make it; moeir check reads data"),
        (toy / "corpus.jsonl", "moeir did not make it"),
    ):
        result = moeir("info", path)
        assert (result.code, result.stdout) == (4, "") and words in result.stderr and len(result.stderr.splitlines()) == 1
    assert moeir("info", tiny_model, "--form", "xml") == (2, "", "error: --form xml: expected table or json\n")
    assert moeir("info").code == 2


@pytest.mark.parametrize("name", ["ids.txt", "manifest.json"])
def test_a_damaged_artifact_is_not_described(name, index, tmp_path, refuse):
    copy = shutil.copytree(index, tmp_path / "copy")
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    refuse(4, "damaged", f"info {copy}")
