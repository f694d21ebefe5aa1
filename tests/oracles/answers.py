"""Answers in texts, letter by letter and token by token."""

import unicodedata


def tokens(text: str) -> list[str]:
    words: list[str] = []
    inside = False
    for letter in unicodedata.normalize("NFD", text):
        kind = unicodedata.category(letter)[0]
        if kind in "LNM":
            if not inside:
                words.append("")
            words[-1] += letter
        elif kind not in "ZC":
            words.append(letter)
        inside = kind in "LNM"
    return [token.lower() for token in words]


def holds(text: str, answers: list[str]) -> bool:
    """An answer without a token is nowhere."""
    words = tokens(text)
    for answer in answers:
        wanted = tokens(answer)
        for start in range(len(words)):
            if wanted and words[start : start + len(wanted)] == wanted:
                return True
    return False
