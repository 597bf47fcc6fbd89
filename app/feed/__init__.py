"""Turn a run's events into snapshots, whether live, stored or replayed."""
