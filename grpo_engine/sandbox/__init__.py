"""Runs users' code in processes of their own: rewards, tools, environments, chat templates."""
