"""Alerts: problems that show in a run's metrics."""
