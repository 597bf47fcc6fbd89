"""Runs as one file for someone else."""
