"""The settings of a run: the tree, its recipes, and what they are called elsewhere."""
