"""Export runs to files for other programs."""
