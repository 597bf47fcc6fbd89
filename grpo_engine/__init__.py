"""GRPO on MLX as a generator of events; knows no screen and no database."""
