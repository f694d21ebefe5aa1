"""Passages and collapsed lists by their definitions, slowly: every place to cut is considered, every hit is looked up."""


def cut_by_definition(sentences, words, count, room, overlap):
    """Token ranges of passages; `sentences` and `words` are the sets of tokens that begin one."""
    begin, end, ranges = 0, 0, []
    while end < count:
        ends = range(end + 1, min(begin + room, count) + 1)
        end = max(ends, key=lambda token: (token == count, token in sentences, token in words, token))
        ranges.append((begin, end))
        following = min({token for token in sentences if token > end} | {count})
        fits = following - max({token for token in sentences if token <= end} | {0}) <= room
        begins = [token for token in range(begin + 1, end + 1) if end - token <= overlap and (not fits or following - token <= room)]
        begin = min(begins, key=lambda token: (token not in sentences, token not in words and token != end, token), default=end)
    return ranges


def collapse_by_dictionary(hits, depth=None):
    """(document, best score) of the (passage, score) pairs of a query, best first; of equal scores the later id by bytes first."""
    best = {}
    for passage, score in hits:
        document = passage.rpartition("#")[0]
        best[document] = max(score, best.get(document, score))
    return sorted(best.items(), key=lambda hit: (hit[1], hit[0].encode()), reverse=True)[:depth]
