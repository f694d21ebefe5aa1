"""The pipeline steps: one file per command, and the modules that commands share. Heavy imports happen in `work`."""
