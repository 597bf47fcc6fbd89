"""The process that runs reward functions, and the engine's side of it."""
