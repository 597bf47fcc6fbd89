"""Curves in a terminal."""
