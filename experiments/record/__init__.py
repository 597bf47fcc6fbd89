"""Record a run in the store while it trains."""
