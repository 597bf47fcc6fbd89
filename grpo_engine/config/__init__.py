"""The settings of a run, the recipes, and their names in TRL."""
