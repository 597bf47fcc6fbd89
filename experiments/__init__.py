"""The store: every run kept, compared, exported; knows no screen and no MLX."""
