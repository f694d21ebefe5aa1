"""The steps of a pipeline: one file, one command. Nothing heavy is imported until `work`."""
