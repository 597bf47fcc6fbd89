"""The maths of the GRPO family: arrays in, arrays out; no config, no model, no tokenizer."""
