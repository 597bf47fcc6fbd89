"""Runs as a page in one file, which any browser opens without a network."""
