"""Whole-word masking by loops over one text at a time, drawing its bits one by one in Python numbers."""

WRAP = 2**64


def bits(key, place):
    """SplitMix64's number at a place of the sequence of a key."""
    mixed = (key + (place + 1) * 0x9E3779B97F4A7C15) % WRAP
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % WRAP
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % WRAP
    return mixed ^ (mixed >> 31)


def key(seed, epoch, copy, text):
    """The key of a text."""
    mixed = 0
    for part in (seed, epoch, copy, text):
        mixed = bits(mixed, part)
    return mixed


def words(ids, begins, alone):
    """The places of each word's tokens."""
    found = []
    for place, token in enumerate(ids):
        if place == 0 or token in begins or token in alone or ids[place - 1] in alone:
            found.append([])
        found[-1].append(place)
    return found


def hide(ids, key, rate, *, begins, alone, special, ordinary, mask):
    """What is read, and the places that are hidden, of one text."""
    whole = [word for word in words(ids, begins, alone) if ids[word[0]] not in special]
    budget = max(1, round(rate * len(ids)))
    whole.sort(key=lambda word: bits(key, 2 * word[0]))
    hidden = []
    for word in whole:
        if len(hidden) + len(word) <= budget:
            hidden += word
    if whole and not hidden:
        hidden = min(whole, key=len)
    read = list(ids)
    for place in hidden:
        drawn = bits(key, 2 * place + 1)
        share, other = drawn >> 32, ordinary[(drawn % 2**32) * len(ordinary) >> 32]
        if share < int(0.8 * 2**32):
            read[place] = mask
        elif share < int(0.9 * 2**32):
            read[place] = other
    return read, sorted(hidden)
