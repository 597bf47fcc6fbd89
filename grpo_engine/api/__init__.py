"""The engine from Python: what `import grpo_engine` offers, loaded when it is first used."""
