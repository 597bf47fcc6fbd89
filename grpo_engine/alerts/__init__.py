"""What the numbers of a run say is wrong."""
