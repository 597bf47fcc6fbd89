"""Reading GGUF files: header, weights, tokenizer."""
