"""Answer matching in texts, character by character and token by token."""

import unicodedata


def tokenize(text: str) -> list[str]:
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


def contains_answer(text: str, answers: list[str]) -> bool:
    """Whether the text contains an answer's tokens in a row; an answer without tokens never matches."""
    words = tokenize(text)
    for answer in answers:
        wanted = tokenize(answer)
        for start in range(len(words)):
            if wanted and words[start : start + len(wanted)] == wanted:
                return True
    return False
