"""Experiments that anyone can repeat: their settings, how they are run, and docs/results.md."""
