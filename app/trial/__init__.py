"""Trials: what a run with these settings would read and cost, computed in a separate process.

Tokenizers, data sets, MLX and users' reward files are loaded there, so that the workbench neither
waits for them nor crashes with them.
"""
