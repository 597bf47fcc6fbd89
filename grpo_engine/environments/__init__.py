"""Environments: what replies to the model's answers, in processes of their own."""
