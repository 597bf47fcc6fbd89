"""The lab: a stored group under other choices, side by side with what really happened."""
