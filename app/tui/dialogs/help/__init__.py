"""Help on the focused element."""
