"""Weight files of other people's encoders ⇄ ours, one file for each family.

A family's file has `NAMES`, a `name_map.NameMap` of its weights, and `parse_config`, which reads its config.json as an `EncoderConfig`.
`weights_io.import_family` finds the file by `model_type` in config.json. An architecture that computes differently also needs its layers
in `backbones/layers.py`.
"""
