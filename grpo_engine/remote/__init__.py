"""A policy whose weights are on a server, reached through the Tinker API."""
