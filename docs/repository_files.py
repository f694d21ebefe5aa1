"""A hook of mkdocs: files of the repository that pages link to, such as ../examples/quickstart.sh, are pages of the site too."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
FOLDERS = ("examples", "tests/benchmarks/results")
LANGUAGES = {".sh": "bash", ".py": "python", ".yaml": "yaml", ".sbatch": "bash", ".ipynb": "json", ".md": ""}
LINK = re.compile(rf"\]\((?:\.\./)+((?:{'|'.join(FOLDERS)})/[\w./-]+)")


def page_name(path: str) -> str:
    """The page of a file: README.md opens its folder, other Markdown keeps its name, a program's page ends with .md."""
    return path.replace("README.md", "index.md") if path.endswith(".md") else f"{path}.md"


def on_files(files: Files, config: Any) -> Files:
    """Add the files as pages, a program as a block of code, and the pictures that they show."""
    for folder in FOLDERS:
        for picture in sorted((ROOT / folder).rglob("*.svg")):
            files.append(File.generated(config, picture.relative_to(ROOT).as_posix(), abs_src_path=str(picture)))
        for path in sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in LANGUAGES):
            name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
            if language := LANGUAGES[path.suffix]:
                text = f"# {path.name}\n\n`{name}`\n\n~~~~{language}\n{text}~~~~\n"
            files.append(File.generated(config, page_name(name), content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links to the repository's files lead to their pages."""
    up = "../" * page.file.src_uri.count("/")
    return LINK.sub(lambda link: f"]({up}{page_name(link[1])}", markdown)
