"""Bad input: impossible architecture specs, damaged checkpoints, answers, grids, analyses."""

import json
from pathlib import Path

from tests.bad_input import ENCODE, EVALUATE, FUSE, INIT, MINE, Bad, Setup, damaged, file, says, writes

facts = "came", "moeir.json"
TUNE = FUSE + "two.trec --method hybrid --tune nDCG@10 --qrels test.qrels --grid "
ASKED = '{"_id": "q1", "text": "who?", "answers": ["owl"]}\n'
ANSWERS = "evaluate --run one.trec --corpus corpus.jsonl --answers bad.jsonl"
USAGE = "analyze usage --model came --corpus corpus.jsonl"
DIVERGENCE = "analyze divergence --model came --queries train-queries.jsonl --corpus corpus.jsonl --qrels test.qrels"


def unlisted(**changes: object) -> Setup:
    """Change moeir.json of a checkpoint without updating its checksum in the manifest."""

    def setup(folder: Path) -> None:
        damaged(*facts, says(**changes))(folder)
        manifest = folder / "bad/manifest.json"
        size = (folder / "bad/moeir.json").stat().st_size
        files = json.loads(manifest.read_text())["files"]
        says(files={"moeir.json": files["moeir.json"] | {"bytes": size}})(manifest)

    return setup


def rules(**changes: object) -> Setup:
    return unlisted(reading={"query_prefix": "", "document_prefix": "", "query_length": 16, "document_length": 32} | changes)


SPECS = [
    Bad("no such device to look at experts on", None, USAGE + " --device cuda:99", 2, "--device cuda:99: torch sees"),
    Bad("a thousand experts too many", None, INIT + "--arch taser:experts=20000", 2, "experts=20000: expected 2 to 1024"),
    Bad("one expert to choose from", None, INIT + "--arch sbmoe:experts=1", 2, "experts=1: expected 2 to 1024"),
    Bad("an option that is no number", None, INIT + "--arch taser:temperature=inf", 2, "temperature: expected a number, found 'inf'"),
    Bad("scores turned round", None, INIT + "--arch splade:scale=-1", 2, "the scale of the lexical expert's scores is -1; expected 0 to"),
    Bad("scores beyond float32", None, INIT + "--arch dense:scale=1e300", 2, "the scale of the global expert's scores is 1e+300"),
    Bad("experts in no layer", None, INIT + "--arch came:shared_layers=0,routing=role", 2, "need shared layers, found shared_layers=0"),
    Bad("a block over a vector that is not there", None, INIT + "--arch came:shared_layers=2,experts=local,global_experts=3", 2,
        "the experts local have no global one"),
    Bad("a name in capitals", None, INIT + "--arch TASER", 2, "architectures has no 'TASER'; did you mean 'taser'?"),
    Bad("more memory than there is", None, INIT + "--arch coil:dim=9999999999999", 1, "out of memory"),
    Bad("no such room", None, "variants nope", 2, "there is no room or variant 'nope'; known: analysis.overlap,"),
]  # fmt: skip

CHECKPOINTS = [
    Bad("facts that are a list", damaged(*facts, writes("[]")), "info bad", 4, "bad/moeir.json: damaged: a JSON object was expected"),
    Bad("no architecture", unlisted(architecture=None), "info bad", 4, "bad/moeir.json: damaged: `architecture` or `reading` is missing"),
    Bad("an architecture of another time", unlisted(architecture="perceiver"), "info bad", 4, "architectures has no 'perceiver'"),
    Bad("an architecture of other options", unlisted(architecture="came:layers=3"), "info bad", 4, "came has no option 'layers'"),
    Bad("an architecture that cannot be", unlisted(architecture="came:shared_layers=9"), "info bad", 4,
        "bad/moeir.json: damaged, or of another version of moeir: came:shared_layers=9: the encoder has 4"),
    Bad("rules that are a number", unlisted(reading=7), "info bad", 4, "bad/moeir.json: damaged: `architecture` or `reading` is missing"),
    Bad("a length that is a word", rules(query_length="x"), "info bad", 4, "query_length is 'x'; expected int"),
    Bad("a length that nobody reads", rules(query_length=10**9), "info bad", 4, "--query-length 1000000000: expected 3 to 64"),
    Bad("facts of another size", damaged(*facts, writes("{}")), ENCODE + "bad", 4, "bad/moeir.json: damaged: expected"),
]  # fmt: skip

ANSWERED = [
    Bad("answers without a corpus", file("bad.jsonl", ASKED), "evaluate --run one.trec --answers bad.jsonl", 2, "--answers needs --corpus"),
    Bad("a way to match nothing", None, EVALUATE + "one.trec --match regex", 2, "--match regex needs --answers"),
    Bad("a way to match nothing in mining", None, MINE + " --match regex", 2, "--match regex needs --exclude-answers"),
    Bad("one stream for two", None, "fuse --run - --run - --output out.trec", 2, "--run - and --run -: standard input can be read once"),
    Bad("answers read twice from a stream", None, ANSWERS.replace("bad.jsonl", "-") + " --group-by _id", 2,
        "--answers -: --group-by reads them too"),
    Bad("a question twice", file("bad.jsonl", ASKED + ASKED), ANSWERS, 3, "bad.jsonl:2: duplicate id 'q1'"),
    Bad("no answers", file("bad.jsonl", ASKED.replace('["owl"]', "[]")), ANSWERS, 3, "question 'q1' has no answers"),
    Bad("answers that are no list", file("bad.jsonl", ASKED.replace('["owl"]', '"owl"')), ANSWERS, 3, "answers is not a list of strings"),
    Bad("an array that does not end", file("bad.jsonl", '[{"question": "who?", "answers": ["owl"]}'), ANSWERS, 3, "the end of the file"),
    Bad("a measure of what nobody judged", file("bad.jsonl", ASKED), ANSWERS + " --measure nDCG@10", 2, "cannot be computed from answers"),
    Bad("a measure without its cut-off", None, EVALUATE + "one.trec --measure Success", 2,
        "cutoff=nothing; expected NAME, NAME@CUTOFF or"),
    Bad("two measures in one", None, EVALUATE + "one.trec --measure nDCG@10,RR@10", 2, "and the flag again for another measure"),
    Bad("a grid beyond all numbers", None, TUNE + "0:1e999999:1e-999999", 2, "expected FIRST:LAST:STEP"),
    Bad("a grid that does not ascend", None, TUNE + "2:1:0.1", 2, "expected FIRST:LAST:STEP, ascending"),
    Bad("a grid and nothing to tune", None, FUSE + "two.trec --grid 0:1:0.5", 2, "--grid is for tuning; add --tune"),
    Bad("ranks that count nothing", None, FUSE + "two.trec --method rrf:constant=inf", 2, "expected a number, found 'inf'"),
    Bad("no tokens at once", None, USAGE + " --max-tokens 0", 2, "--max-tokens 0: expected at least 1"),
    Bad("no router", None, USAGE, 2, "came has no router; there is no usage to count"),
    Bad("a kernel as wide as the world", None, DIVERGENCE + " --bandwidth 1e300", 2, "--bandwidth 1e+300: expected 0.001 to 1000"),
    Bad("a seed of pairs below zero", None, DIVERGENCE + " --seed -1", 2, "--seed -1: expected 0 to"),
]  # fmt: skip

EXPERTS = [*SPECS, *CHECKPOINTS, *ANSWERED]
