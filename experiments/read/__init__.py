"""Questions to the store."""
