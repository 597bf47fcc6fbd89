"""Start runs and carry them out; uses no Textual."""
