"""Stored answers as data for the next training: demonstrations, and pairs to prefer by."""
