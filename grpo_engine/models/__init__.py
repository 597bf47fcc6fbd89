"""Import of GGUF models, and the embedded starter model."""
