"""The parts of a training step: `trainer` shows their order."""
