"""What the experts do: where they agree, and where they differ."""
