"""What exists for Linux processors only: the BLAS, and compiled decode steps and passes."""
