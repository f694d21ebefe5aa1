"""Damaged, exchanged and outdated encodings and indexes.

Bad input: impossible architecture specs, damaged checkpoints, answers, grids, analyses.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from moeir.artifacts import manifests
from tests.bad_input import (
    ENCODE,
    EVALUATE,
    FUSE,
    INDEX,
    INIT,
    MINE,
    SEARCH,
    BadInput,
    Setup,
    damaged_copy,
    flip_bit,
    overwrite,
    set_keys,
    write_file,
)

REPAIR = "run moeir index again with --force"


def make_other_checkpoint(folder: Path) -> None:
    shutil.copytree(folder / "came", folder / "other")
    files = json.loads((folder / "came/manifest.json").read_text())["files"]
    set_keys(files={"moeir.json": files["moeir.json"]})(folder / "other/manifest.json")


def swap_file(name: str, other: str) -> Setup:
    """Copy the index and replace one of its files by another."""

    def setup(folder: Path) -> None:
        shutil.copytree(folder / "idx", folder / "bad")
        shutil.copy(folder / other, folder / "bad" / name)

    return setup


def remove_seal(path: Path) -> None:
    content = json.loads(path.read_text())
    del content["seal"]
    path.write_text(json.dumps(content))


def change_word(path: Path) -> None:
    path.write_text(path.read_text().replace('"flat"', '"flap"'))


manifest, encoded = ("idx", "manifest.json"), ("enc", "manifest.json")
OLD_FORMAT = "bad: an index of format 0, made by version"
DAMAGE = [
    BadInput("queries of another checkpoint", make_other_checkpoint, SEARCH + "idx --model other", 4, "and moeir index again"),
    BadInput(
        "an older index",
        damaged_copy(*manifest, set_keys(format=0)),
        SEARCH + "bad",
        4,
        f"{OLD_FORMAT} 0.1.0 of moeir; this one reads format 1; {REPAIR}",
    ),
    BadInput(
        "an index of nobody's",
        damaged_copy(*manifest, set_keys(format=None, versions=None)),
        SEARCH + "bad",
        4,
        "bad: an index of format None, made by version unknown of moeir",
    ),
    BadInput("a later index", damaged_copy(*manifest, set_keys(format=2)), SEARCH + "bad", 4, "this one reads format 1; update moeir"),
    BadInput(
        "later encodings", damaged_copy(*encoded, set_keys(format=2)), INDEX + "bad", 4, "bad: encodings of format 2, made by version"
    ),
    BadInput(
        "a manifest without its seal",
        damaged_copy(*manifest, remove_seal),
        SEARCH + "bad",
        4,
        "bad/manifest.json: damaged: manifest checksum",
    ),
    BadInput("a word of the manifest", damaged_copy(*manifest, change_word), SEARCH + "bad", 4, f"manifest checksum mismatch; {REPAIR}"),
    BadInput("a manifest of encodings", damaged_copy(*encoded, flip_bit), INDEX + "bad", 4, "bad/manifest.json: damaged"),
    BadInput(
        "another expert's", swap_file("global/vectors.npy", "idx/local/vectors.npy"), SEARCH + "bad", 4, "global/vectors.npy: damaged"
    ),
    BadInput("ids of another index", swap_file("ids.txt", "queries.tsv"), SEARCH + "bad", 4, REPAIR),
    BadInput("another manifest", swap_file("manifest.json", "bm25/manifest.json"), SEARCH + "bad", 4, f"the file is missing; {REPAIR}"),
    BadInput(
        "encodings of nothing", damaged_copy("enc", "lexical/terms.npy", overwrite("")), INDEX + "bad", 4, "moeir encode again with --force"
    ),
]

facts = "came", "moeir.json"
TUNE_HYBRID = FUSE + "two.trec --method hybrid --tune nDCG@10 --qrels test.qrels --grid "
ASKED = '{"_id": "q1", "text": "who?", "answers": ["owl"]}\n'
ANSWERS = "evaluate --run one.trec --corpus corpus.jsonl --answers bad.jsonl"
USAGE = "analyze usage --model came --corpus corpus.jsonl"
DIVERGENCE = "analyze divergence --model came --queries train-queries.jsonl --corpus corpus.jsonl --qrels test.qrels"


def rewrite_checkpoint_facts(**changes: object) -> Setup:
    """Change moeir.json of a checkpoint, and its entry in the manifest, as another version might have written it."""
    return rewrite_facts(set_keys(**changes))


def rewrite_facts(change: Callable[[Path], object]) -> Setup:
    """Change moeir.json of a checkpoint, and its entry in the manifest."""

    def setup(folder: Path) -> None:
        damaged_copy(*facts, change)(folder)
        manifest, changed = folder / "bad/manifest.json", folder / "bad/moeir.json"
        content = json.loads(manifest.read_text())
        content["files"]["moeir.json"] = manifests.compute_checksums([changed])[0]
        manifest.write_text(manifests.serialize_manifest(content))

    return setup


def rewrite_reading_rules(**changes: object) -> Setup:
    return rewrite_checkpoint_facts(
        reading={"query_prefix": "", "document_prefix": "", "query_length": 16, "document_length": 32} | changes
    )


SPECS = [
    BadInput("no such device to look at experts on", None, USAGE + " --device cuda:99", 2, "--device cuda:99: torch sees"),
    BadInput("a thousand experts too many", None, INIT + "--arch taser:experts=20000", 2, "experts=20000: expected 2 to 1024"),
    BadInput("no expert to choose from", None, INIT + "--arch sbmoe:experts=0", 2, "experts=0: expected 1 to 1024"),
    BadInput("an option that is no number", None, INIT + "--arch taser:temperature=inf", 2, "temperature: expected a number, found 'inf'"),
    BadInput("scores turned round", None, INIT + "--arch splade:scale=-1", 2,
        "the scale of the lexical expert's scores is -1; expected 0 to"),
    BadInput("scores beyond float32", None, INIT + "--arch dense:scale=1e300", 2, "the scale of the global expert's scores is 1e+300"),
    BadInput("experts in no layer", None, INIT + "--arch came:shared_layers=0,routing=role", 2,
        "need shared layers, found shared_layers=0"),
    BadInput("a block over a vector that is not there", None, INIT + "--arch came:shared_layers=2,experts=local,global_experts=3", 2,
        "the experts local have no global one"),
    BadInput("a name in capitals", None, INIT + "--arch TASER", 2, "architectures has no 'TASER'; did you mean 'taser'?"),
    BadInput("more memory than there is", None, INIT + "--arch coil:dim=9999999999999", 1, "out of memory"),
    BadInput("no such package", None, "variants nope", 2, "there is no package or variant 'nope'; known: analysis.overlap,"),
]  # fmt: skip

CHECKPOINTS = [
    BadInput("facts that are a list", rewrite_facts(overwrite("[]")), "info bad", 4,
        "bad/moeir.json: damaged: a JSON object was expected"),
    BadInput("no architecture", rewrite_checkpoint_facts(architecture=None), "info bad", 4,
        "bad/moeir.json: damaged: `architecture` or `reading` is missing"),
    BadInput("an architecture of another time", rewrite_checkpoint_facts(architecture="perceiver"), "info bad", 4,
        "architectures has no 'perceiver'"),
    BadInput("an architecture of other options", rewrite_checkpoint_facts(architecture="came:layers=3"), "info bad", 4,
        "came has no option 'layers'"),
    BadInput("an architecture that cannot be", rewrite_checkpoint_facts(architecture="came:shared_layers=9"), "info bad", 4,
        "bad/moeir.json: damaged, or of another version of moeir: came:shared_layers=9: the encoder has 4"),
    BadInput("rules that are a number", rewrite_checkpoint_facts(reading=7), "info bad", 4,
        "bad/moeir.json: damaged: `architecture` or `reading` is missing"),
    BadInput("a length that is a word", rewrite_reading_rules(query_length="x"), "info bad", 4, "query_length is 'x'; expected int"),
    BadInput("a length that nobody reads", rewrite_reading_rules(query_length=10**9), "info bad", 4,
        "--query-length 1000000000: expected 3 to 64"),
    BadInput("facts of another size", damaged_copy(*facts, overwrite("{}")), ENCODE + "bad", 4, "bad/moeir.json: damaged: expected"),
]  # fmt: skip

ANSWERED = [
    BadInput("answers without a corpus", write_file("bad.jsonl", ASKED), "evaluate --run one.trec --answers bad.jsonl", 2,
        "--answers needs --corpus"),
    BadInput("a way to match nothing", None, EVALUATE + "one.trec --match regex", 2, "--match regex needs --answers"),
    BadInput("a way to match nothing in mining", None, MINE + " --match regex", 2, "--match regex needs --exclude-answers"),
    BadInput("one stream for two", None, "fuse --run - --run - --output out.trec", 2,
        "--run - and --run -: standard input can be read once"),
    BadInput("answers read twice from a stream", None, ANSWERS.replace("bad.jsonl", "-") + " --group-by _id", 2,
        "--answers -: --group-by reads them too"),
    BadInput("a question twice", write_file("bad.jsonl", ASKED + ASKED), ANSWERS, 3, "bad.jsonl:2: duplicate id 'q1'"),
    BadInput("no answers", write_file("bad.jsonl", ASKED.replace('["owl"]', "[]")), ANSWERS, 3, "question 'q1' has no answers"),
    BadInput("answers that are no list", write_file("bad.jsonl", ASKED.replace('["owl"]', '"owl"')), ANSWERS, 3,
        "answers is not a list of strings"),
    BadInput("an array that does not end", write_file("bad.jsonl", '[{"question": "who?", "answers": ["owl"]}'), ANSWERS, 3,
        "the end of the file"),
    BadInput("a measure of what nobody judged", write_file("bad.jsonl", ASKED), ANSWERS + " --measure nDCG@10", 2,
        "cannot be computed from answers"),
    BadInput("a measure without its cut-off", None, EVALUATE + "one.trec --measure Success", 2,
        "cutoff=nothing; expected NAME, NAME@CUTOFF or"),
    BadInput("two measures in one", None, EVALUATE + "one.trec --measure nDCG@10,RR@10", 2, "and the flag again for another measure"),
    BadInput("a grid beyond all numbers", None, TUNE_HYBRID + "0:1e999999:1e-999999", 2, "expected FIRST:LAST:STEP"),
    BadInput("a grid that does not ascend", None, TUNE_HYBRID + "2:1:0.1", 2, "expected FIRST:LAST:STEP, ascending"),
    BadInput("a grid and nothing to tune", None, FUSE + "two.trec --grid 0:1:0.5", 2, "--grid is for tuning; add --tune"),
    BadInput("ranks that count nothing", None, FUSE + "two.trec --method rrf:constant=inf", 2, "expected a number, found 'inf'"),
    BadInput("no tokens at once", None, USAGE + " --max-tokens 0", 2, "--max-tokens 0: expected at least 1"),
    BadInput("no router", None, USAGE, 2, "came has no router; there is no usage to count"),
    BadInput("a kernel as wide as the world", None, DIVERGENCE + " --bandwidth 1e300", 2, "--bandwidth 1e+300: expected 0.001 to 1000"),
    BadInput("a seed of pairs below zero", None, DIVERGENCE + " --seed -1", 2, "--seed -1: expected 0 to"),
]  # fmt: skip

EXPERTS = [*SPECS, *CHECKPOINTS, *ANSWERED]
