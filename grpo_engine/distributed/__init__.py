"""Runs on several machines."""
