"""The embedded models, which ship with the package."""
