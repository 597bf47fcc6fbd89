"""Writing a run into the store while it happens."""
