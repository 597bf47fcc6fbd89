"""The model's fast paths, each with a switch and a plain counterpart."""
