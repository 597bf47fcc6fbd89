"""Tasks, one file per family: examples, prompt, default rewards."""
