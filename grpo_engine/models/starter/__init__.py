"""The embedded starter model, which ships with the package, and how it is made."""
