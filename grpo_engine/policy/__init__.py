"""The policy: model, adapters, reference, critic and log-probabilities."""
