"""The formats of other tools, read and written without loss: what one has no place for is refused by name."""
