"""Pairs of texts inside a template, a decoder's own for chats or one of the user: its text, and the tokens of its parts.

A text is tokenised once, with as much of the template beside it as its tokens can depend on: the template is cut where the tokenizer
begins a token whatever the texts are. The tokens of a pair are then those of the whole text, except that a token never reaches from a
document into what follows it, which stays when the document is cut. Special tokens that are written in a query or a document are text.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from moeir.backbones.families import weights_io
from moeir.backbones.packed_pairs import PairTemplate
from moeir.backbones.tokenizer import TextTokenizer
from moeir.errors import ArtifactError, UsageError

QUERY, DOCUMENT, INSTRUCTION = "{query}", "{document}", "{instruction}"
DEFAULT_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"  # of Qwen3-Reranker, as the next line
JUDGE = "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be "
CHAT_OPTIONS = {"add_generation_prompt": True, "enable_thinking": False}
PROBES = ("th", "e", "What is it?", "42 mice.", "(é) \U0001f989", 'the end!"', "x\ny:", "3\n\nA -", "owl")
Context = tuple[str, str, str]


def read_chat_template(
    tokenizer: TextTokenizer,
    words: Sequence[str],
    instruction: str = "",
    options: Mapping[str, Any] = CHAT_OPTIONS,
    *,
    has_roles: bool = False,
) -> tuple[str, str]:
    """The chat template of the weights as the text of a pair, and the instruction in it: that which is given, else its own.

    A template that reads the roles query and document, as those of rerankers do, gets them, and the instruction as system message; with
    `has_roles` each does. Any other gets Qwen3-Reranker's messages, in which `words` are the answers. ArtifactError if there is none, or it
    cannot be rendered.
    """
    template, special_tokens = tokenizer.chat_template
    if not isinstance(template, str):
        example = "--template 'Query: {query} Document: {document} Relevant: '"
        raise ArtifactError(f"{tokenizer.folder}: its tokenizer has no chat template; give the text of a pair, as in {example}")
    has_roles = has_roles or all(re.search(f"""["']{role}["']""", template) for role in ("query", "document"))

    def render(instruction: str) -> str:
        system = instruction if has_roles else JUDGE + " or ".join(f'"{word}"' for word in (words if len(words) == 2 else ("yes", "no")))
        messages = [{"role": "system", "content": system if has_roles else f"{system}."}] if system else []
        if has_roles:
            messages += [{"role": "query", "content": QUERY}, {"role": "document", "content": DOCUMENT}]
        else:
            content = f"<Instruct>: {instruction or DEFAULT_INSTRUCTION}\n<Query>: {QUERY}\n<Document>: {DOCUMENT}"
            messages.append({"role": "user", "content": content})
        values, render_chat = {**special_tokens, **options}, weights_io.import_transformers_model().render_chat
        return str(render_chat(template, messages, values, tokenizer.folder))

    open_text, text = render(INSTRUCTION), render(instruction)
    before, placeholder, after = open_text.partition(INSTRUCTION)
    own = text[len(before) : len(text) - len(after)]
    is_open = bool(placeholder) and text == before + own + after
    if instruction and not is_open:
        raise UsageError(f"--instruction {instruction!r}: the chat template of {tokenizer.folder} has no place for it; give a --template")
    split_template(text)
    return (open_text, own) if is_open else (text, "")


def split_template(template: str, instruction: str = "") -> tuple[str, str, str]:
    """The text before the query, between both, and after the document, with the instruction in it; UsageError for another template."""
    filled = template.replace(INSTRUCTION, instruction)
    head, _, rest = filled.partition(QUERY)
    middle, _, tail = rest.partition(DOCUMENT)
    if filled != head + QUERY + middle + DOCUMENT + tail or any(one in head + middle + tail for one in (QUERY, DOCUMENT)):
        raise UsageError(f"--template {template!r}: expected {QUERY} and, after it, {DOCUMENT}, each once")
    if instruction and INSTRUCTION not in template:
        raise UsageError(f"--instruction {instruction!r}: the template {template!r} has no {INSTRUCTION}")
    return head, middle, tail


def cut_template(tokenizer: TextTokenizer, template: str, instruction: str) -> tuple[PairTemplate, Context]:
    """The tokens of a template's constant parts, and the text that is tokenised with a query, before and after it, and before a document.

    ArtifactError for a tokenizer whose tokens reach from one text into the other, or which puts something before each text.
    """
    head, middle, tail = split_template(template, instruction)
    pairs = [(PROBES[number - 1], text) for number, text in enumerate(PROBES)]
    texts, encode = {query: head + query + middle + document + tail for query, document in pairs}, tokenizer.encode_template
    joined = ArtifactError(f"{tokenizer.folder}: its tokenizer joins texts with the template around them, or begins each with a space")

    def find_border(most: int, position: Callable[[int, str], int]) -> int:
        for distance in range(most + 1):
            cuts = [(text, position(distance, query)) for query, text in texts.items()]
            if all(list(chain(*encode([text[:cut], text[cut:]]))) == encode([text])[0] for text, cut in cuts):
                return distance
        raise joined

    start = find_border(len(head), lambda distance, query: len(head) - distance)
    end = find_border(len(middle), lambda distance, query: len(head) + len(query) + distance)
    own = find_border(len(middle), lambda distance, query: len(head) + len(query) + len(middle) - distance)
    own = min(own, len(middle) - end)
    context = (head[len(head) - start :], middle[:end], middle[len(middle) - own :])
    before, between, after = encode([head[: len(head) - start], middle[end : len(middle) - own], tail])
    for query, document in pairs:
        own_ids = tokenizer.encode([context[0] + query + context[1], context[2] + document], special=False)
        whole, *ended = encode([text := head + query + middle + document, text + tail])
        if before + own_ids[0] + between + own_ids[1] != whole or (document == PROBES[-1] and [whole + after] != ended):
            raise joined
    return PairTemplate(tuple(before), tuple(between), tuple(after), (0, 0, 0, 0, 0)), context
