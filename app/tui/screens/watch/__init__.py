"""Watch: a run while it trains, and why its numbers move."""
