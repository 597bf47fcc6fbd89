"""Text and numbers made safe and readable."""
