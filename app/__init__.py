"""The Textual app and the command line; connects the engine and the store."""
