"""Models that come from elsewhere, and the one that ships with the program."""
