"""Format text and numbers safely for display."""
