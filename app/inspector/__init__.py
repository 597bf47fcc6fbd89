"""What one token did in the loss: numbers from the engine's maths, explained in words."""
