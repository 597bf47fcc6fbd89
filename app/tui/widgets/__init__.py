"""One panel per file; each has one reactive that holds a snapshot."""
