"""Weight files of other people's encoders ⇄ ours: one file per family, found by `model_type` in config.json."""
