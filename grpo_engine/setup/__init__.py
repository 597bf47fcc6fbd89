"""Prepares a run from settings, up to its first step."""
