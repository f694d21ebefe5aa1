"""Texts of different lengths for encode_speed.py: every tenth of each collection's first 2,000, shuffled with a seed.

python mixed_corpus.py OUTPUT CORPUS … [--every 10]
"""

import random
from dataclasses import replace
from itertools import islice
from pathlib import Path

from rounds import make_parser

from moeir.records import texts

parser = make_parser(__doc__, ("output",), every=10)
parser.add_argument("corpora", type=Path, nargs="+")
options = parser.parse_args()
sample = [text for corpus in options.corpora for text in islice(texts.read_texts(corpus), 0, 2000, options.every)]
random.Random(1).shuffle(sample)
texts.write_texts((replace(text, id=f"t{row}") for row, text in enumerate(sample)), options.output)
