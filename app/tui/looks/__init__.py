"""Themes, colours and styles."""
