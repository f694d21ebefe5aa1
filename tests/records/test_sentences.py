"""Sentence boundaries and full stops that are none; concatenated, the sentences are the text."""

import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeir.records.sentences import find_sentence_starts


def split_sentences(text):
    """The sentences of a text."""
    return [text[begin:end] for begin, end in pairwise([*find_sentence_starts(text), len(text)])]


EXAMPLES = [
    "An owl hunts at night.| It sleeps by day!| Does it dream?| Nobody knows…| So we asked.",
    "Dr. Owl met Mrs. Bat, e.g. in Fig. 3, at 3.5 km.| They flew on.",
    "J. R. Hen wrote No. 5 of Vol. 2.| The answer was yes.| It still is.",
    "The U.S. Army came at 5 p.m. Monday.| Ants, bees, etc. are small.| Smith et al. (2003) counted them.",
    "He said “Stop!”| Then he left.| (See below.)| [It stops.]| End.",
    "“Why?” he asked.| “I know,” she said.",
    "1. Heat the oven.| 2. Wait.| Chapter 7.| Then eat.",
    "A heading|\n \n An item without a stop|\n\n\nthe next one. and so on.|\n\nEnd\n\n",
    "猫在睡觉。|狗「不睡！」|鸟呢？|是。",
    "Wait...| What?!| Yes... maybe.| Version 2.0.1 is out.| See moeir.org for it.",
]


@pytest.mark.parametrize("marked_text", EXAMPLES)
def test_a_text_parts_where_a_reader_would_part_it(marked_text):
    assert split_sentences(marked_text.replace("|", "")) == marked_text.split("|")


@settings(max_examples=50)
@given(
    st.text(alphabet="aB. !?\n\"')。“”1…", max_size=60)
    | st.lists(st.sampled_from(["A.", "\n\n", "b", " ", "。", "!"])).map("".join)
    | st.text(max_size=60)
)
def test_no_character_is_lost_and_the_order_is_kept(text):
    assert "".join(split_sentences(text)) == text
    starts = find_sentence_starts(text)
    assert starts[0] == 0
    assert starts == sorted(set(starts))


@pytest.mark.parametrize("unit", [".", "\n ", "a.", '."', "A. "])
def test_odd_texts_take_linear_time(unit):
    began = time.perf_counter()
    find_sentence_starts(unit * 50_000)
    assert time.perf_counter() - began < 5
