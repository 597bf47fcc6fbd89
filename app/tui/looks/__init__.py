"""Themes, colours and how screens are styled."""
