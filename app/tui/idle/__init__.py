"""Work for the moments when nobody types."""
