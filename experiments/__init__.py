"""The experiment store: records, compares and exports runs; imports no UI and no MLX."""
