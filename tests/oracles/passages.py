"""Passages and collapsed lists by their definitions, slowly: every place to cut is considered, every hit is looked up."""


def cut_by_definition(lengths, room, stride):
    """Word ranges of the passages of sentences of these lengths: whole sentences, or words of a sentence longer than `room`."""
    sentences = {sum(lengths[:number]) for number in range(len(lengths) + 1)}
    count, begin, ranges = sum(lengths), 0, []

    def is_allowed(word):
        if word in sentences:
            return True
        return min(one for one in sentences if one > word) - max(one for one in sentences if one < word) > room

    while not ranges or ranges[-1][1] < count:
        end = max(word for word in range(begin + 1, begin + room + 1) if word <= count and is_allowed(word))
        ranges.append((begin, end))
        following = min((word for word in range(end + 1, count + 1) if is_allowed(word)), default=count)
        shared = [word for word in range(end + 1) if is_allowed(word) and end - word <= max(0, room - stride) and following - word <= room]
        begin = min(shared)
    return ranges


def collapse_by_dictionary(hits, depth=None):
    """(document, best score) of the (passage, score) pairs of a query, best first; of equal scores the later id by bytes first."""
    best = {}
    for passage, score in hits:
        document = passage.rpartition("#")[0]
        best[document] = max(score, best.get(document, score))
    return sorted(best.items(), key=lambda hit: (hit[1], hit[0].encode()), reverse=True)[:depth]
