"""Texts of different lengths for encode_speed.py: every tenth of each collection's first 2,000, shuffled with a seed.

python mixed_corpus.py OUTPUT CORPUS …
"""

import random
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

from moeir.records import texts

output, *corpora = map(Path, sys.argv[1:])
sample = [text for corpus in corpora for text in islice(texts.read_texts(corpus), 0, 2000, 10)]
random.Random(1).shuffle(sample)
texts.write_texts((replace(text, id=f"t{row}") for row, text in enumerate(sample)), output)
