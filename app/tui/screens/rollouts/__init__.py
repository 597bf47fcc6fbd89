"""Rollouts: any step, group or answer, down to the numbers of one token."""
