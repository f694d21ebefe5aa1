"""Which contexts a span may have, by listing them."""

REACH = 100


def others(span, spans, reach=REACH):
    """The other spans of a document (their numbers) at most `reach` away."""
    return [other for other in spans if other != span and abs(other - span) <= reach]


def overlaps(span, document, maximum):
    """The token bounds of every context that overlaps a span; a document is a list of spans, a span of sentences (begin, end)."""
    sentences = [sentence for one in document for sentence in one]
    own = document[span]
    found = set()
    for kept in range(1, max(1, len(own) // 2) + 1):
        if span < len(document) - 1:
            chosen = own[-kept:]
            rest = [sentence for sentence in sentences if sentence[0] >= own[-1][1]]
            begin = chosen[0][0]
            end = max((stop for _, stop in rest if stop - begin <= maximum), default=min(begin + maximum, sentences[-1][1]))
            found.add((begin, end))
        else:
            chosen = own[:kept]
            rest = [sentence for sentence in sentences if sentence[1] <= own[0][0]]
            end = chosen[-1][1]
            begin = min((start for start, _ in rest if end - start <= maximum), default=max(end - maximum, sentences[0][0]))
            found.add((begin, end))
    return found
