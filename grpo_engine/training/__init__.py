"""The parts of a training step, in the order that `trainer` shows."""
