"""Whole-word masking by loops over one text at a time, with its random bits in Python numbers."""

WRAP = 2**64


def random_bits(key, position):
    """SplitMix64's number at a position of a key's sequence."""
    mixed = (key + (position + 1) * 0x9E3779B97F4A7C15) % WRAP
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % WRAP
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % WRAP
    return mixed ^ (mixed >> 31)


def text_key(seed, epoch, copy, text):
    """The random key of a text."""
    mixed = 0
    for part in (seed, epoch, copy, text):
        mixed = random_bits(mixed, part)
    return mixed


def word_positions(ids, begins, standalone):
    """The token positions of each word."""
    grouped = []
    for position, token in enumerate(ids):
        if position == 0 or token in begins or token in standalone or ids[position - 1] in standalone:
            grouped.append([])
        grouped[-1].append(position)
    return grouped


def mask_words(ids, key, rate, *, begins, alone, special, ordinary, mask):
    """The input ids of one text after masking, and its masked positions."""
    candidates = [word for word in word_positions(ids, begins, alone) if ids[word[0]] not in special]
    budget = max(1, round(rate * len(ids)))
    candidates.sort(key=lambda word: random_bits(key, 2 * word[0]))
    masked = []
    for word in candidates:
        if len(masked) + len(word) <= budget:
            masked += word
    if candidates and not masked:
        masked = min(candidates, key=len)
    visible = list(ids)
    for position in masked:
        number = random_bits(key, 2 * position + 1)
        fraction, replacement = number >> 32, ordinary[(number % 2**32) * len(ordinary) >> 32]
        if fraction < int(0.8 * 2**32):
            visible[position] = mask
        elif fraction < int(0.9 * 2**32):
            visible[position] = replacement
    return visible, sorted(masked)
