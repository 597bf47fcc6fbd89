"""Samples answers: one prefill per prompt, all rows decoded as one batch."""
