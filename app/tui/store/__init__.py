"""Access to the store off the UI thread."""
