"""Representations → nearest rows; one file per engine, named as it is typed: `flat`, `inverted`, `maxsim`, `exact-match`, `bm25`."""
