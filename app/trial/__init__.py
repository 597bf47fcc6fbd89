"""Trials: what a run of these settings would read and cost, tried in a process of its own.

Tokenizers, data sets, MLX and users' reward files are loaded there, so that the workbench neither
waits for them nor falls with them.
"""

from app.trial.client import TrialError, TrialProcess

__all__ = ["TrialError", "TrialProcess"]
