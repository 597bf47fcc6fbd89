"""What a run holds, what may be asked of it, and its checkpoints."""
