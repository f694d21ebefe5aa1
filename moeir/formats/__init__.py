"""The formats of other tools, read and written without loss: what a format cannot hold is refused by name."""
