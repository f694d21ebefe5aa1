"""Conventions that can be checked: forbidden calls, places of imports, names."""

import ast
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "moeir"
FILES = sorted(PACKAGE.rglob("*.py"))
CALLS = {"exec", "compile", "hasattr", "breakpoint", "input", "__import__"}  # more in ruff's rules
ATTRIBUTES = {"torch.load", "torch.save", "yaml.load", "os.system", "os.popen", "np.fromfile", "sys.exit", "os._exit", "tempfile.mktemp"}
ATTRIBUTES |= {"np.save"}  # which overlooks an error of its last write
MODULES = {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "tarfile", "zipfile", "subprocess"}
DISK = {"os.fsync", "os.rename", "os.replace", "fcntl.flock"}
PROGRAMS = {("subprocess", "moeir/indexes/lucene.py"), ("zipfile", "moeir/backbones/torch_files.py")}  # Java; sizes, read before weights
ENVIRONMENT = {"moeir/cli.py", "moeir/backbones/device.py", "moeir/distributed.py"}  # cuBLAS's variable; torchrun's
SHARED_NAMES = {  # public names that several modules define, each with its reason
    "parse_config": "the interface of a family of backbones",
    "BgeM3": "an architecture, and the layout of its published weights",
    "Colbert": "an architecture and the format of its paper's code",
    "Dense": "an architecture, and the representation that it makes",
    "Index": "a stage, and the interface of an index",
    "Mote": "an architecture, and its pre-training",
    "margin_mse": "an objective, and the loss that it computes",
    "zscore": "a way to fuse runs, and the same for the scores of an ensemble",
}
NO_MODULES = {"utils", "util", "common", "core", "helpers", "misc", "models"}


def relative_path(file: Path) -> str:
    return str(file.relative_to(ROOT))


@functools.cache
def parse_file(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def nodes(file: Path) -> Iterator[ast.AST]:
    return ast.walk(parse_file(file))


def faulty_files(find: Callable[[Path], object]) -> dict[str, object]:
    """The files in which something is found, with what it is."""
    return {relative_path(file): found for file in FILES if (found := find(file))}


def dotted_name(node: ast.AST) -> str:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def find_forbidden_calls(file: Path) -> list[str]:
    calls = []
    for node in nodes(file):
        if isinstance(node, ast.Call):
            name = dotted_name(node.func)
            calls += [name] if name in CALLS | ATTRIBUTES else []
            calls += [ast.unparse(keyword) for keyword in node.keywords if ast.unparse(keyword) == "allow_pickle=True"]
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            calls += [name for name in names if name.split(".")[0] in MODULES and (name, relative_path(file)) not in PROGRAMS]
    return calls


def test_nothing_forbidden_is_called():
    weights_only = ["torch.save", "torch.load"]
    assert faulty_files(find_forbidden_calls) == {"moeir/cli.py": ["sys.exit"], "moeir/backbones/torch_files.py": weights_only}


def find_uses_of_disk_and_environment(file: Path) -> set[str]:
    used = {dotted_name(node) for node in nodes(file)}
    allowed = {"fcntl.flock"} if file.parent.name == "loaders" else set()  # programs of their own, which wait for one another
    allowed |= DISK if file.parent.name == "artifacts" else set()
    allowed |= {"os.environ", "os.getenv"} if relative_path(file) in ENVIRONMENT else set()
    return used & {*DISK, "os.environ", "os.getenv"} - allowed


def test_only_artifacts_brings_things_to_disk_and_only_cli_reads_the_environment():
    assert faulty_files(find_uses_of_disk_and_environment) == {}


def find_late_imports(file: Path) -> list[str]:
    functions = [node for node in nodes(file) if isinstance(node, ast.FunctionDef)]
    return [ast.unparse(node) for function in functions for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)]


def test_imports_stand_at_the_top_but_for_stages_and_the_gates():
    gates = {  # and what they spare
        *("records/remote_rows.py", "records/lines.py"),  # hf:, compressed files
        *("backbones/families/weights_io.py", "kernels/attention.py", "kernels/int8_linear.py"),  # the hub, CUDA, numba
        *("indexes/exact_sum.py", "indexes/postings.py", "retrieval/latency.py", "retrieval/searcher.py"),  # torch, numba: BM25 needs none
        "representations/multivector.py",  # scipy's clustering
        *("functions.py", "__main__.py"),  # torch; the command line
        "export_targets/loaders/milvus.py",  # the server of a file
    }
    assert {name.removeprefix("moeir/") for name in faulty_files(find_late_imports) if not name.startswith("moeir/stages/")} <= gates


def find_undocumented(file: Path) -> list[str]:
    tree = parse_file(file)
    definitions = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")]
    names = [node.name for node in definitions if not ast.get_docstring(node)]
    return names if (ast.get_docstring(tree) or "").strip() else ["the module", *names]


def test_modules_and_public_definitions_say_what_they_hold():
    assert faulty_files(find_undocumented) == {}


def test_two_public_definitions_do_not_share_a_name():
    files_by_name: dict[str, list[str]] = {}
    for file in FILES:
        for node in parse_file(file).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                files_by_name.setdefault(node.name, []).append(relative_path(file))
    shared = {name: files for name, files in files_by_name.items() if len(files) > 1}
    assert {name: files for name, files in shared.items() if name not in SHARED_NAMES} == {}
    assert shared.keys() == SHARED_NAMES.keys()  # a name that is no longer shared leaves the list


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported_modules(file: Path, modules: set[str]) -> set[str]:
    """The modules of the package that a file imports, in functions and for type checking too."""
    imported = set()
    for node in nodes(file):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported |= {name if (name := f"{node.module}.{alias.name}") in modules else node.module for alias in node.names}
    return imported & modules


def test_no_circles():
    files = {module_name(file): file for file in FILES}
    graph = {name: imported_modules(file, set(files)) for name, file in files.items()}
    assert any(graph.values())
    while leaves := {name for name, imports in graph.items() if not imports}:
        graph = {name: imports - leaves for name, imports in graph.items() if name not in leaves}
    assert graph == {}, "modules on a circle of imports, or above one"


def test_rooms_are_nouns_of_retrieval():
    assert not {part for file in FILES for part in file.relative_to(PACKAGE).with_suffix("").parts} & NO_MODULES
