"""From a run's events to snapshots, whether it is live, stored or replayed."""
