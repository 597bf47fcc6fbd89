"""The fast paths of the model, each with its switch and its plain counterpart."""
