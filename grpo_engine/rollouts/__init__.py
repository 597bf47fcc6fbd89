"""Samples completions: one prefill per prompt, all rows decoded as one batch."""
