"""From settings to a run that is ready for its first step."""
