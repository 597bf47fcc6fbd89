"""GGUF files: read, dequantised, and made into model folders."""
