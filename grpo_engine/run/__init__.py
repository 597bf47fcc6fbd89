"""The state of a run, the requests that it answers, and its checkpoints."""
