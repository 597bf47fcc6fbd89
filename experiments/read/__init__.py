"""Queries on the store."""
