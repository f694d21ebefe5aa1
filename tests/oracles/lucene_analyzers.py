"""Terms of Lucene's own analysers, by pyjnius in the Java of the extra `lucene`; a program, since a process has one Java for good.

python -m tests.oracles.lucene_analyzers < LINES          # a line: ["german", "Ein Text"]; prints ["text"] for each
python -m tests.oracles.lucene_analyzers --stop-words     # writes moeir/indexes/stop_words.txt
python -m tests.oracles.lucene_analyzers --update FILE    # FILE has lines ["german", "Ein Text", […]]: writes Lucene's terms
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from moeir.indexes.analyzer import STOP_WORDS_FILE
from moeir.indexes.lucene import java_command

ROOT = Path(__file__).parents[2]
PACKAGES = {
    **{"arabic": "ar", "armenian": "hy", "basque": "eu", "catalan": "ca", "cjk": "cjk", "czech": "cz", "danish": "da", "dutch": "nl"},
    **{"english": "en", "estonian": "et", "finnish": "fi", "french": "fr", "german": "de", "greek": "el", "hindi": "hi", "hungarian": "hu"},
    **{"indonesian": "id", "irish": "ga", "italian": "it", "lithuanian": "lt", "nepali": "ne", "norwegian": "no", "persian": "fa"},
    **{"portuguese": "pt", "romanian": "ro", "russian": "ru", "serbian": "sr", "spanish": "es", "swedish": "sv", "tamil": "ta"},
    "turkish": "tr",
}


def start_java() -> Any:
    """pyjnius's `autoclass`, with Anserini's jar on the class path."""
    executable, _, jar = java_command()
    os.environ["JAVA_HOME"] = str(Path(executable).parents[1])
    import jnius_config

    jnius_config.set_classpath(jar)
    import jnius

    return jnius.autoclass


class LuceneAnalyzers:
    """Lucene's analysers by the names of languages."""

    def __init__(self) -> None:
        self._autoclass = start_java()
        self._term_attribute = self._autoclass("org.apache.lucene.analysis.tokenattributes.CharTermAttribute")
        self._analyzers: dict[str, Any] = {}

    def _class_of(self, language: str) -> Any:
        name = "CJK" if language == "cjk" else language.capitalize()
        return self._autoclass(f"org.apache.lucene.analysis.{PACKAGES[language]}.{name}Analyzer")

    def terms(self, language: str, text: str) -> list[str]:
        """The terms of a text, in order."""
        if language not in self._analyzers:
            self._analyzers[language] = self._class_of(language)()
        stream = self._analyzers[language].tokenStream("contents", text)
        attribute, terms = stream.getAttribute(self._term_attribute), list[str]()
        stream.reset()
        while stream.incrementToken():
            terms.append(attribute.toString())
        stream.close()
        return terms

    def stop_words(self, language: str) -> list[str]:
        """The default stop words of a language, sorted; one of several words is left out, as no token equals it."""
        words = self._class_of(language).getDefaultStopSet().toString().strip("[]").split(", ")
        return sorted(word for word in words if " " not in word)


def run_lucene(texts: Iterable[tuple[str, str]]) -> Iterator[list[str]]:
    """The terms of texts with their languages, by this program in its own process."""
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    command = [sys.executable, "-m", "tests.oracles.lucene_analyzers"]
    output = subprocess.run(command, input=lines, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return map(json.loads, output.splitlines())


def write_stop_words(analyzers: LuceneAnalyzers) -> None:
    """Write the package's file of stop words, below its head; English has its own in the code."""
    head = "".join(line for line in STOP_WORDS_FILE.read_text(encoding="utf-8").splitlines(keepends=True) if line.startswith("#"))
    lines = (f"{language}: {' '.join(analyzers.stop_words(language))}\n" for language in PACKAGES if language != "english")
    STOP_WORDS_FILE.write_text(head + "".join(lines), encoding="utf-8")


def update_file(analyzers: LuceneAnalyzers, path: Path) -> None:
    """Replace the terms of every line of a file by Lucene's."""
    lines = [json.loads(line)[:2] for line in path.read_text(encoding="utf-8").splitlines()]
    rows = ([language, text, analyzers.terms(language, text)] for language, text in lines)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def main() -> None:
    """Print terms for each line of stdin, or write a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stop-words", action="store_true")
    parser.add_argument("--update", type=Path)
    options, analyzers = parser.parse_args(), LuceneAnalyzers()
    if options.stop_words:
        write_stop_words(analyzers)
    elif options.update:
        update_file(analyzers, options.update)
    else:
        sys.stdout.writelines(json.dumps(analyzers.terms(*json.loads(line)), ensure_ascii=False) + "\n" for line in sys.stdin)


if __name__ == "__main__":
    main()
