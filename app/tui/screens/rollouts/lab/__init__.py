"""The lab: a stored group under other choices, beside what really happened."""
