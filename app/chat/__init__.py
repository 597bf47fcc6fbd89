"""A trained model and the one it began as, asked the same thing side by side."""
