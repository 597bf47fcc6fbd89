"""Runs of other trainers, read from the files that these write."""
