"""The parts of a training step, in the order in which `trainer` uses them."""
