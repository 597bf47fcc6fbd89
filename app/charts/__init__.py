"""Charts for screens and the command line: series, axes, and the curves of stored runs."""
