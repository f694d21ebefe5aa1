"""A tiny tokenizer in the form of each family, written here word by word: the same bytes everywhere, no file from elsewhere."""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

BYTES = ("<s>", "<pad>", "</s>", "<unk>")
MODERN = ("<|padding|>", "[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "[unused0]", "[unused1]")
BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "[unused1]")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
MARKS = (",", ".", "!", "?", "(", ")", "...")
WORDS = ("the", "end", "owl", "owls", "hunting", "night", "mice", "cat", "whale", "bread", "sea", "at", "in")


def _byte_pairs() -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens and merges: each word behind a space, and each mark, grows from its first letter."""
    tokens, merges = sorted(pre_tokenizers.ByteLevel.alphabet()), []
    for word in (*(f"Ġ{word}" for word in (*WORDS, *MARKS)), "An", "..."):
        for end in range(1, len(word)):
            if word[: end + 1] not in tokens:
                tokens.append(word[: end + 1])
                merges.append((word[:end], word[end]))
    return tokens, merges


def write_roberta(folder: Path) -> int:
    """tokenizer.json of byte pairs with RoBERTa's special tokens: V."""
    tokens, merges = _byte_pairs()
    every = [*BYTES, *tokens, "<mask>"]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(every)}, merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens([*BYTES, AddedToken("<mask>", lstrip=True)])
    return _save(tokenizer, folder, ("<s>", "</s>"))


def write_xlm_roberta(folder: Path) -> int:
    """tokenizer.json of a unigram model, ▁ for the space before a word: V."""
    pieces = [*(f"▁{word}" for word in WORDS), "▁(", "▁...", *MARKS, "▁", *LETTERS]
    scored = [(token, 0.0) for token in BYTES] + [(piece, -float(number)) for number, piece in enumerate(pieces, 1)] + [("<mask>", 0.0)]
    tokenizer = Tokenizer(models.Unigram(scored, unk_id=3))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([*BYTES, AddedToken("<mask>", lstrip=True)])
    return _save(tokenizer, folder, ("<s>", "</s>"))


def write_modernbert(folder: Path) -> int:
    """tokenizer.json of byte pairs with BERT's special tokens: V."""
    tokens, merges = _byte_pairs()
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate([*MODERN, *tokens])}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(MODERN))
    return _save(tokenizer, folder, ("[CLS]", "[SEP]"))


def write_bert(folder: Path) -> int:
    """vocab.txt alone, of word pieces: V."""
    pieces = [*BERT, *(mark for mark in MARKS if len(mark) == 1), *LETTERS, *(f"##{letter}" for letter in LETTERS), *WORDS]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    return len(pieces)


def _save(tokenizer: Tokenizer, folder: Path, ends: tuple[str, str]) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    numbered = [(token, tokenizer.token_to_id(token)) for token in ends]
    first, last = ends
    pair = f"{first} $A {last} $B {last}" if first == "[CLS]" else f"{first} $A {last} {last} $B {last}"
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{first} $A {last}", pair=pair, special_tokens=numbered)
    tokenizer.save(str(folder / "tokenizer.json"))
    return int(tokenizer.get_vocab_size())


WRITERS = {"roberta": write_roberta, "xlm-roberta": write_xlm_roberta, "modernbert": write_modernbert}
ALL_WRITERS = WRITERS | dict.fromkeys(("bert", "electra-base", "electra-small", "distilbert"), write_bert)
