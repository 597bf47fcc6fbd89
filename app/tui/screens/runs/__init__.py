"""Runs: every stored run, to find, mark, open and control."""
