"""What one token did in the loss: numbers from the engine's own maths, told in words."""
