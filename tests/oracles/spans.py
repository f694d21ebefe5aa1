"""All contexts that a span may have."""

MAX_DISTANCE = 100


def spans_within(span, spans, reach=MAX_DISTANCE):
    """The other spans of a document (their numbers) at most `reach` away."""
    return [other for other in spans if other != span and abs(other - span) <= reach]


def overlapping_contexts(span, document, maximum):
    """The token bounds of every context that overlaps a span; a document is a list of spans, a span of sentences (begin, end)."""
    sentences = [sentence for one_span in document for sentence in one_span]
    own = document[span]
    contexts = set()
    for count in range(1, max(1, len(own) // 2) + 1):
        if span < len(document) - 1:
            sentences_kept = own[-count:]
            following = [sentence for sentence in sentences if sentence[0] >= own[-1][1]]
            begin = sentences_kept[0][0]
            end = max((stop for _, stop in following if stop - begin <= maximum), default=min(begin + maximum, sentences[-1][1]))
            contexts.add((begin, end))
        else:
            sentences_kept = own[:count]
            following = [sentence for sentence in sentences if sentence[1] <= own[0][0]]
            end = sentences_kept[-1][1]
            begin = min((start for start, _ in following if end - start <= maximum), default=max(end - maximum, sentences[0][0]))
            contexts.add((begin, end))
    return contexts
