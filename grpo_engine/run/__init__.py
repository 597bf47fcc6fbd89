"""The state of a run, its handling of requests, and its checkpoints."""
