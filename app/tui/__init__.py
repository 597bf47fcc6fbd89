"""The workbench on a terminal."""
