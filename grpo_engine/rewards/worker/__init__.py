"""The process that runs reward functions, and the engine's client for it."""
