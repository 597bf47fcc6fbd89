"""One file per task family: examples, prompt, default rewards."""
