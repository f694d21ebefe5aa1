"""Terms of our analysers beside Lucene's own, for each language, on the translated messages of the programs of a machine; and their speed.

    python -m tests.benchmarks.analyzer_peer [LOCALES …] [--languages german french] [--words 25000 --altered 6000]
    python -m tests.benchmarks.analyzer_peer --languages swedish --word-list /usr/share/dict/swedish --words 60000
    python -m tests.benchmarks.analyzer_peer [LOCALES …] --languages english german cjk --speed [--corpus CORPUS --rounds 5]

LOCALES are folders of gettext, CODE/LC_MESSAGES/*.mo (by default /usr/share/locale). Texts are drawn until they have `--words` different
words. Altered words are drawn from these: other capitals, endings of other words, apostrophes, articles, digits and accents.
With `--word-list FILE`, the words are drawn of a dictionary instead, one a line (what follows a slash is left out), for one language.
Needs the extra `lucene`. With `--speed`, Lucene is not asked: texts are joined to about 100 words, English ones are CORPUS; prints the
milliseconds of 1,000 texts by a new analyser, and by one that knows their words.
"""

import argparse
import gettext
import random
import statistics
import sys
import time
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path

import regex

from moeir.indexes.languages import open_analyzer
from moeir.records import texts as text_records
from tests.oracles.lucene_analyzers import PACKAGES, run_lucene

LOCALES = {"english": ["en_GB"], "norwegian": ["nb"], "czech": ["cs"], "portuguese": ["pt", "pt_BR"], "serbian": ["sr", "sr@latin"]}
LOCALES["cjk"] = ["ja", "zh_CN", "zh_TW", "ko"]
WORD = regex.compile(r"[\p{L}\p{M}'’\u200c\u200d]+")
ARTICLES = ["l'", "d’", "n'", "t-", "h-", "n", "t", "qu'", "L’", "un'", "m'"]
ADDITIONS = [*"٣۴३௪9５\u0301\u0307İIßΣẞ"]


def read_messages(folders: list[Path], language: str) -> list[str]:
    """The translated messages of a language, in an order drawn by seed."""
    messages = set[str]()
    for folder in folders:
        for code in LOCALES.get(language, [PACKAGES[language]]):
            for path in sorted((folder / code / "LC_MESSAGES").glob("*.mo")):
                try:
                    with open(path, "rb") as file:
                        catalog = gettext.GNUTranslations(file)._catalog
                except (OSError, ValueError):  # some files are of encodings that Python has not
                    continue
                messages |= {message for source, message in catalog.items() if source and isinstance(message, str) and message != source}
    ordered = sorted(messages)
    random.Random(0).shuffle(ordered)
    return ordered


def draw_texts(messages: list[str], words_wanted: int) -> tuple[list[str], list[str]]:
    """Messages that bring new words, until there are so many; and the words."""
    words, drawn = dict[str, None](), list[str]()
    for message in messages:
        if not words.keys() >= (own := dict.fromkeys(WORD.findall(message))).keys():
            words |= own
            drawn.append(message)
        if len(words) >= words_wanted:
            break
    return drawn, sorted(words)


def alter_words(words: list[str], count: int) -> Iterator[str]:
    """Words that are altered at random, eight a text."""
    generator = random.Random(1)
    endings = [word[-length:] for word in words for length in (1, 2, 3, 4) if len(word) > length]
    altered = [alter_word(generator.choice(words), words, endings, generator) for _ in range(count)]
    return (" ".join(altered[first : first + 8]) for first in range(0, count, 8))


def alter_word(word: str, words: list[str], endings: list[str], generator: random.Random) -> str:
    """The word in one of seven other forms, or as it is."""
    place, kind = generator.randint(1, len(word)), generator.random()
    forms = {
        0.25: word.upper(),
        0.4: word.capitalize(),
        0.75: word[:place] + generator.choice(endings),
        0.82: word + generator.choice("'’") + generator.choice(endings),
        0.87: generator.choice(ARTICLES) + word,
        0.92: word[:place] + generator.choice(words)[:3] + word[place:],
        0.96: word + generator.choice(ADDITIONS),
    }
    return next((form for limit, form in forms.items() if kind < limit), word)


def count_differences(language: str, texts: list[str]) -> tuple[int, int, list[str]]:
    """How many terms Lucene has in the texts, how many are not ours, and ten examples."""
    analyzer, terms, different, examples = open_analyzer(language), 0, 0, list[str]()
    for text, theirs in zip(texts, run_lucene((language, text) for text in texts), strict=True):
        ours = list(analyzer.terms(text))
        terms += len(theirs)
        if ours != theirs:
            for kind, first, last, begin, end in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
                if kind != "equal":
                    different += max(last - first, end - begin)
                    examples.append(f"{' '.join(ours[first:last])}, not {' '.join(theirs[begin:end])}")
    return terms, different, sorted(set(examples))[:10]


def compare(language: str, options: argparse.Namespace) -> None:
    """Print a language's row of the table."""
    drawn, words = draw_texts(read_messages(options.locales, language), options.words)
    cells = [language, f"{len(drawn):,}", f"{len(words):,}"]
    examples = list[str]()
    for texts in (drawn, [*alter_words(words, options.altered)]):
        terms, different, own = count_differences(language, texts)
        cells += [f"{terms:,}", f"{different:,}", f"{1 - different / max(terms, 1):.3%}"]
        examples += own
    sys.stdout.write(f"| {' | '.join([*cells, '; '.join(examples[:6])])} |\n")
    sys.stdout.flush()


def compare_word_list(language: str, options: argparse.Namespace) -> None:
    """Print a language's row for words of a dictionary, twenty a text."""
    lines = options.word_list.read_text(encoding=options.encoding).splitlines()
    words = sorted({word for line in lines if (word := line.split("/")[0].split("\t")[0].strip()) and not regex.search(r"[\s\d]", word)})
    random.Random(5).shuffle(words)
    drawn = words[: options.words]
    texts = [" ".join(drawn[first : first + 20]) for first in range(0, len(drawn), 20)]
    terms, different, examples = count_differences(language, texts)
    share, shown = f"{1 - different / terms:.3%}", "; ".join(examples[:4])
    sys.stdout.write(f"| {language} | {len(words):,} | {len(drawn):,} | {terms:,} | {different:,} | {share} | {shown} |\n")


def measure_speed(language: str, options: argparse.Namespace) -> None:
    """Print the milliseconds of 1,000 texts."""
    if language == "english" and options.corpus:
        texts = [text.content for text in text_records.read_texts(options.corpus)][:4000]
    else:
        words = [word for message in read_messages(options.locales, language) for word in message.split()]
        texts = [" ".join(words[first : first + 100]) for first in range(0, len(words), 100)][:4000]
    seconds: dict[str, list[float]] = {"new": [], "known": []}
    for _ in range(options.rounds):
        analyzer = open_analyzer(language)
        for way in seconds:
            start = time.process_time()
            terms = sum(len(analyzer.terms(text)) for text in texts)
            seconds[way].append(time.process_time() - start)
    new, known = (statistics.median(column) / len(texts) * 1e6 for column in seconds.values())
    characters = sum(map(len, texts)) / len(texts)
    sys.stdout.write(f"{language:12} {len(texts)} texts of {characters:.0f} characters and {terms / len(texts):.0f} terms: ")
    sys.stdout.write(f"{new:.0f} ms a 1,000, {known:.0f} once the words are known\n")


def main() -> None:
    """Print a row for each language."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("locales", nargs="*", type=Path, default=[Path("/usr/share/locale")])
    parser.add_argument("--languages", nargs="*", default=list(PACKAGES))
    for name, default in {"words": 25_000, "altered": 6_000, "rounds": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--word-list", type=Path)
    parser.add_argument("--encoding", default="utf-8")
    parser.add_argument("--speed", action="store_true")
    options = parser.parse_args()
    for language in options.languages:
        (measure_speed if options.speed else compare_word_list if options.word_list else compare)(language, options)


if __name__ == "__main__":
    main()
