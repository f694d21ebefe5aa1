"""`make mutants`: change one expression of moeir at a time and see whether its tests fail.

A mutant runs in a copy of the tree, in a child of this process, which has imported the heavy libraries once. Results go to a file of JSON
lines; a mutant that has one is not run again. The mutants of mutants_explained.tsv change no behaviour and are not run.
"""

import argparse
import ast
import collections
import contextlib
import hashlib
import importlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (".", *sorted(path.parent.name for path in (ROOT / "moeir").glob("[!_]*/__init__.py")))  # the files at the top, and all packages
WARM = "torch torch._dynamo transformers.models.bert.modeling_bert numba scipy.stats safetensors.torch hypothesis typer rich pytest"
MORE_TESTS = {  # of modules that no test imports, or not all that matter
    "artifacts/unfinished": "training/test_unfinished artifacts/test_atomic_write", "artifacts/shards": "stages/test_encode_shards",
    "fusion/files": "stages/test_saved_fusions stages/test_fuse", "fusion/score_lists": "fusion/",
    "heads/classification": "architectures/test_cross_encoder training/test_cross_encoders",
    "heads/lexical": "heads/ architectures/test_options",
    **dict.fromkeys(("heads/pooling", "heads/token_vectors"), "heads/ architectures/test_options architectures/test_published_folders"),
    "formats/checkpoint": "formats/ architectures/test_published_folders",
    "indexes/base": "indexes/test_exact_engines indexes/test_flat",
    "indexes/sparse_rows": "indexes/test_exact_engines indexes/test_postings",
    "indexes/postings_search": "indexes/test_exact_engines indexes/test_postings",
    **dict.fromkeys(("indexes/exact_match", "indexes/flat", "indexes/inverted", "indexes/maxsim"), "indexes/test_exact_engines"),
    "stages/index": "stages/test_index_several_encodings",
    "indexes/token_store": "indexes/test_exact_engines indexes/test_maxsim",
    "indexes/vector_store": "indexes/test_maxsim indexes/test_two_step indexes/test_flat",
    "backbones/dispatch": "backbones/test_dispatch mixtures/",
    "training/losses": "training/test_objectives training/test_formulas",
    "functions": "test_public_api", "reporting/training_curves": "stages/test_report",
    "stages/check": "data_checks/", "stages/checkpoint_options": "stages/test_pretrain",
    "stages/convert": "formats/test_convert", "stages/finetune": "stages/test_training_checkpoints stages/test_early_refusals",
    "stages/init": "architectures/test_checkpoint stages/test_every_architecture", "stages/variants": "test_variants test_cli",
    "stages/run_arguments": "stages/test_fuse stages/test_evaluate", "retrieval/explain": "stages/test_search_explain",
    "retrieval/run_files": "stages/test_search",
}  # fmt: skip
MORE_TESTS |= {  # of packages whose files are tested through the commands
    "analysis/result": "stages/test_analyze",
    "data_sources": "test_data_sources",
    "hub": "stages/test_push stages/test_pull", "parsing": "test_settings", "records/remote_rows": "test_data_sources",
    **dict.fromkeys(("reporting/explanations", "reporting/html_page", "reporting/page_data"), "stages/test_report"),
    **dict.fromkeys(("reranking/candidates", "reranking/score_journal", "reranking/scoring"), "stages/test_rerank"),
    "settings": "test_cli test_data_sources", "console": "test_cli stages/test_outputs", "variants": "test_own_code",
    "retrieval/searcher": "stages/test_search stages/test_exact_sum", "mining": "stages/test_mine_negatives",
    "pretraining/task": "stages/test_pretrain",
    "stages/base": "stages/test_outputs stages/test_next_command",
}  # fmt: skip
HELP = "test_cli.py::test_help_pages_are_as_reviewed"  # which show the defaults of stages
LIMITS = "test_cli.py::test_limits_of_settings_are_as_reviewed"
OPTIONS = "test_docs.py::test_the_pages_about_the_program_are_the_programs"  # which show the options of variants and their defaults
HAVE_OPTIONS = ("architectures/", "export_targets/", "formats/", "indexes/", "fusion/formulas", "training/objectives")
ELSEWHERE = ("tests/device/", "tests/examples/")  # for other machines, or hours
NEVER = (*ELSEWHERE, "tests/stages/", "tests/test_")  # whole programs, tests of the whole tree

SWAPPED = {"min": "max", "amin": "amax", "minimum": "maximum", "argmin": "argmax", "mean": "sum", "any": "all", "floor": "ceil"}
SWAPPED |= {after: before for before, after in SWAPPED.items()}
SYMBOLS = """Lt < <= >, LtE <= < >=, Gt > >= <, GtE >= > <=, Eq == !=, NotEq != ==, Is is is_not, IsNot is_not is, In in not_in,
    NotIn not_in in, Add + -, Sub - +, Mult * /, Div / *, FloorDiv // *, Mod % *, Pow ** *, BitAnd & |, BitOr | &, LShift << >>,
    RShift >> <<, And and or, Or or and"""  # kind of operation, its symbol, and those that replace it
TOKENS = {kind: [word.replace("_", " ") for word in words] for kind, *words in map(str.split, SYMBOLS.split(","))}
Edit = tuple[str, int, int, str]  # operator, first and last byte + 1, and the text in their place
Mutant = collections.namedtuple("Mutant", "line column operator before after source")  # the first line that differs, the whole file


class Source:
    """The text of a file, and the mutants of it."""

    def __init__(self, text: str) -> None:
        self.text, self.tree = text.encode(), ast.parse(text)
        self.starts = [0, *itertools.accumulate(len(line) for line in self.text.splitlines(keepends=True))]

    def span(self, node: Any) -> tuple[int, int]:
        """First and last byte + 1 of a node."""
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def mutant(self, edit: Edit) -> Mutant | None:
        """The mutant of an edit; None if it does not compile or means the same."""
        operator, begin, end, new = edit
        changed, line = (self.text[:begin] + new.encode() + self.text[end:]).decode(), self.text.count(b"\n", 0, begin)
        with contextlib.suppress(SyntaxError):
            if ast.dump(ast.parse(changed)) != ast.dump(self.tree):
                before, after = (text.splitlines()[line].strip() for text in (self.text.decode(), changed))
                return Mutant(line + 1, begin - self.starts[line], operator, before, after, changed)
        return None

    def edits(self) -> Iterator[Edit]:
        """Every edit of the file."""
        for node in walk(self.tree):
            sides = operands(node)
            for (left, right), operation in zip(itertools.pairwise(sides), getattr(node, "ops", len(sides) * [getattr(node, "op", None)])):
                old, *others = TOKENS.get(type(operation).__name__, [""])
                begin = self.span(left)[1]
                gap = re.search(re.escape(old).replace(r"\ ", r"\s+").encode(), self.text[begin : self.span(right)[0]])
                yield from ((f"{old} {new}", begin + gap.start(), begin + gap.end(), new) for new in others if gap)
            yield from self.node_edits(node)

    def node_edits(self, node: ast.AST) -> Iterator[Edit]:
        """Edits of signs, numbers, booleans, dimensions and reductions; a call or += is deleted, a returned condition negated."""
        match node:
            case ast.UnaryOp():
                begin = self.span(node)[0]
                yield "no sign", begin, begin + (3 if isinstance(node.op, ast.Not) else 1), ""
            case ast.Constant(value=bool()):
                yield "boolean", *self.span(node), str(not node.value)
            case ast.Constant(value=int() | float()):
                values = {node.value + 1: "+1", node.value - 1: "-1", node.value * 2: "*2", type(node.value)(0): "0"}
                yield from ((f"number {name}", *self.span(node), repr(value)) for value, name in values.items() if value != node.value)
            case ast.keyword(arg="dim" | "axis", value=ast.Constant() | ast.UnaryOp()):
                yield "dim", *self.span(node.value), "1" if ast.unparse(node.value) == "0" else "0"
            case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id="min" | "max" | "any" | "all" as name)):
                end = self.span(node.func)[1]
                yield from [("reduction", end - len(name), end, SWAPPED[name])] if name in SWAPPED else []
            case ast.AugAssign() | ast.Expr(value=ast.Call()):
                yield "deleted", *self.span(node), "pass"
            case ast.Return(value=ast.Compare() | ast.BoolOp()):
                yield "negated", *self.span(node.value), f"not ({ast.unparse(node.value)})"


def operands(node: Any) -> list[ast.AST]:
    """The operands of a node's operations, but not of those on text or lists, such as `"x" + a`."""
    if isinstance(node, ast.BinOp):
        values = [getattr(side, "value", side) for side in (node.left, node.right)]
        is_text = any(value is None or isinstance(value, str | bytes | ast.JoinedStr | ast.List | ast.Tuple) for value in values)
        return [] if is_text else [node.left, node.right]
    names = {ast.Compare: ("left", "comparators"), ast.BoolOp: ("values",), ast.AugAssign: ("target", "value")}.get(type(node), ())
    return [side for name in names for side in (getattr(node, name) if name.endswith("s") else [getattr(node, name)])]


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that decide what a program does: no annotations, decorators, assertions, nor messages of errors and logs."""
    yield node
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            is_message = isinstance(child, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom)
            is_log = isinstance(child, ast.Expr) and ast.unparse(child).startswith(("log.", "warnings."))
            if isinstance(child, ast.AST) and not (is_message or is_log or name in ("annotation", "returns", "decorator_list")):
                yield from walk(child)


def shuffle(path: Path, seed: int) -> Iterator[tuple[str, tuple[str, Mutant]]]:
    """The mutants of a module in a random order, in which the operators take turns: key of the result, module, mutant."""
    name, source, by_operator = path.relative_to(ROOT).as_posix(), Source(path.read_text()), collections.defaultdict(list)
    edits, digest = list(source.edits()), hashlib.sha256(source.text).hexdigest()[:12]
    for edit in random.Random(f"{seed}:{name}").sample(edits, len(edits)):
        by_operator[edit[0].split()[0]].append(edit)
    for edit in filter(None, itertools.chain.from_iterable(itertools.zip_longest(*by_operator.values()))):
        if mutant := source.mutant(edit):
            yield f"{name}:{mutant.line}:{mutant.column}:{mutant.operator}:{seed}:{digest}", (name, mutant)


def choose(count: int, seed: int, packages: Sequence[str] = PACKAGES) -> dict[str, tuple[str, Mutant]]:
    """`count` mutants in rounds of one for each module."""
    patterns = {package: "[!_]*.py" if package == "." else "**/[!_]*.py" for package in packages}
    modules = sorted(path for package, pattern in patterns.items() for path in (ROOT / "moeir" / package).glob(pattern))
    rounds = itertools.zip_longest(*(shuffle(path, seed) for path in random.Random(seed).sample(modules, len(modules))))
    return dict(itertools.islice(filter(None, itertools.chain.from_iterable(rounds)), count))


def tests_of(module: str) -> tuple[list[str], list[str]]:
    """What can kill a mutant of moeir/PACKAGE/NAME.py: `named_tests`; others of its package, that import or run it, or are of importers."""
    package, name = ".".join(Path(module).parts[:-1]), Path(module).stem
    imports = re.compile(rf"{re.escape(package)}\.{name}\b|from {re.escape(package)} import [^\n]*\b{name}\b")
    patterns = "tests/**/test_*.py", "moeir/**/*.py"
    files, sources = ([path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob(pattern))] for pattern in patterns)
    named = named_tests(module, files)
    others = [file for file in files if not file.startswith(NEVER) and imports.search((ROOT / file).read_text())]
    if module.startswith("moeir/stages/"):  # its command and a flag
        command = f'"{name.replace("_", "-")}", "-'
        others += [file for file in files if not file.startswith(ELSEWHERE) and command in (ROOT / file).read_text()]
    elif module.count("/") > 1:  # what is reached by its package
        others += [file for file in files if file.startswith(f"tests/{Path(module).parts[1]}/")]
    importers = [source for source in sources if source != module and imports.search((ROOT / source).read_text())]
    others += [test for source in importers for test in named_tests(source, files) if "::" not in test]
    return named, [file for file in dict.fromkeys(others) if file not in named]


def named_tests(module: str, files: Sequence[str]) -> list[str]:
    """The examples of a module, the tests of its name, MORE_TESTS, and the pages that show its options."""
    path = Path(module).relative_to("moeir").with_suffix("").as_posix()
    of_stages = path.startswith("stages/")
    pages = {HELP: of_stages, LIMITS: of_stages, OPTIONS: path.startswith(HAVE_OPTIONS)}
    more = [*MORE_TESTS.get(path, "").split(), *(page for page, shows_it in pages.items() if shows_it)]
    prefixes = [f"tests/{Path(path).parent / f'test_{Path(path).name}'}", *(f"tests/{prefix}" for prefix in more)]
    named = [module] if ">>>" in (ROOT / module).read_text() else []
    return named + [file for file in files if file.startswith(tuple(prefixes))] + [prefix for prefix in prefixes if "::" in prefix]


class Copy:
    """A copy of the tree, in which one run of pytest at a time takes place."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.changes = folder, folder.with_suffix(".log"), itertools.count(1)
        self.seconds: dict[str, float] = {}  # of each test file without a mutant; -1 where it fails
        listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True).stdout
        shutil.rmtree(folder, ignore_errors=True)
        for name in filter(lambda name: name and (ROOT / name).is_file(), listed.decode().split("\0")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)

    def run(self, tests: Iterable[str], limit: float, recompile: bool = False) -> tuple[str, float, str]:
        """`survived`, `killed`, `killed by time` or `no test`, the seconds, and the first test that failed."""
        began, scratch = time.monotonic(), self.folder.with_suffix(".tmp")
        if not all(path.exists() for path in (self.folder / "moeir", Path(sys.executable))):
            raise SystemExit(f"{self.folder} or {sys.executable} is gone: what fails from now on says nothing of a mutant")
        shutil.rmtree(scratch, ignore_errors=True)
        (scratch / "numba").mkdir(parents=True)
        if (pid := os.fork()) == 0:
            self._run_child(tests, scratch, scratch / "numba" if recompile else self.folder.with_suffix(".numba"))
        while not (ended := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() - began < limit:
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # also what the tests started
        code = os.waitstatus_to_exitcode(ended[1]) if ended[0] else os.waitpid(pid, 0)[0]
        status = {0: "survived", 4: "no test", 5: "no test", pid: "killed by time"}.get(code, "killed")
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", self.log.read_text(errors="replace"), re.MULTILINE)
        return status, round(time.monotonic() - began, 1), failed[1] if failed else ""

    def _run_child(self, tests: Iterable[str], scratch: Path, cache: Path) -> None:
        code = 1
        try:
            os.setsid()
            os.chdir(self.folder)
            sys.path[:] = [str(self.folder), *(entry for entry in sys.path if Path(entry).resolve() not in (ROOT, ROOT / "tests"))]
            os.environ |= {"PYTHONPATH": str(self.folder), "NUMBA_CACHE_DIR": str(cache)}
            sys.modules["numba"].config.CACHE_DIR = str(cache)
            for name in [name for name in sys.modules if name.split(".")[0] in ("moeir", "tests")]:
                del sys.modules[name]
            sys.stdout = sys.stderr = open(self.log, "w")  # noqa: SIM115
            os.dup2(os.dup2(sys.stdout.fileno(), 1), 2)
            options = ["-x", "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider", f"--basetemp={scratch / 'tests'}"]
            code = int(sys.modules["pytest"].main([*options, *tests]))
        finally:
            sys.stdout.flush()
            os._exit(code)

    def try_mutant(self, module: str, mutant: Mutant) -> dict[str, Any]:
        """The outcome of the module's examples and the tests of its name, then of the others: those that pass without a mutant."""
        outcome = ("no test", 0.0, "")
        path, old, is_compiled = self.folder / module, (self.folder / module).stat(), "njit" in mutant.source
        for group in tests_of(module):
            for test in group:
                if test not in self.seconds:
                    status, seconds, failed = self.run([test], 900)
                    self.seconds[test] = seconds if status == "survived" else -1.0
                    sys.stdout.write(f"without a mutant: {status} {test} {failed} {seconds} s\n")
            tests = sorted((test for test in group if self.seconds[test] >= 0), key=self.seconds.__getitem__)
            limit, original = 60 + 3 * sum(self.seconds[test] for test in tests) + 180 * is_compiled, path.read_bytes()
            path.write_text(mutant.source)
            os.utime(path, (next(self.changes),) * 2)  # no time twice: compiled modules and loops go by it
            if tests:
                outcome = self.run(tests, limit, is_compiled)  # loops are compiled into those that call them: not from the cache
            path.write_bytes(original)
            os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))
            if outcome[0].startswith("killed"):
                break
        sys.stdout.write(f"{outcome[0]}: {module}:{mutant.line} {mutant.after} {outcome[2]} {outcome[1]} s\n")
        return dict(zip(("status", "seconds", "killer"), outcome, strict=True))


def summarise(results: Sequence[dict[str, Any]]) -> str:
    """The table by package, and every survivor, in Markdown."""
    kinds = ("killed", "killed by time", "survived", "equivalent", "no test")
    counts = collections.Counter((Path(result["module"]).parts[1], result["status"]) for result in results)
    rows = [[package, *(counts[package, kind] for kind in kinds)] for package in sorted({package for package, _ in counts})]
    rows.append(["all", *(sum(row[column] for row in rows) for column in range(1, len(kinds) + 1))])
    lines = [f"| {' | '.join(map(str, row))} |" for row in [["package", *kinds], ["---"] * (len(kinds) + 1), *rows]]
    survivors = [result for result in results if result["status"] == "survived"]
    return "\n".join([*lines, "", *("* `{module}:{line}` `{before}` → `{after}`".format(**result) for result in survivors)])


def run_jobs(jobs: int, waiting: dict[str, tuple[str, Mutant]], results: Path) -> None:
    """Run mutants in some processes, each with a copy of the tree and its share of the modules, and append the results to a file."""
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    modules = list(dict.fromkeys(module for module, _ in waiting.values()))
    for library in WARM.split() if modules else ():
        importlib.import_module(library)
    with tempfile.TemporaryDirectory() as scratch:
        for job in range(jobs := min(jobs, len(modules))):
            if os.fork() == 0:
                copy = Copy(Path(scratch) / f"job{job}")
                for key, (module, mutant) in waiting.items():
                    if module in modules[job::jobs]:
                        outcome = copy.try_mutant(module, mutant)
                        with open(results, "a") as file:
                            file.write(json.dumps({"key": key, "module": module, **mutant._replace(source="")._asdict(), **outcome}) + "\n")
                os._exit(0)
        for _ in range(jobs):
            os.wait()


def main() -> None:
    """Run the mutants that have no result, and print the summary of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--count", type=int, default=400, help="mutants, evenly over the modules; 0 runs none")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--packages", nargs="+", default=PACKAGES)
    parser.add_argument("--results", type=Path, default=ROOT / ".mutants.jsonl", help="delete lines of it to run their mutants again")
    options = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # what is waiting would be written by every child
    options.results.touch()
    rows = [line.split("\t") for line in (ROOT / "tests/mutants_explained.tsv").read_text().splitlines()]
    explained, chosen = {tuple(row[:4]) for row in rows}, choose(options.count, options.seed, options.packages)
    same = {key for key, (module, mutant) in chosen.items() if (module, mutant.operator, mutant.before, mutant.after) in explained}
    known = same | {json.loads(line)["key"] for line in options.results.read_text().splitlines()}
    run_jobs(options.jobs, {key: one for key, one in chosen.items() if key not in known}, options.results)
    known = {result["key"]: result for result in map(json.loads, options.results.read_text().splitlines())}
    known |= {key: {"module": chosen[key][0], "status": "equivalent"} for key in same}
    sys.stdout.write(summarise([known[key] for key in chosen if key in known]))


if __name__ == "__main__":
    main()
