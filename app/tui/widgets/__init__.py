"""One panel per file; each has one reactive attribute with a snapshot."""
