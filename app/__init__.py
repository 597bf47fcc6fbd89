"""The Textual app and the command line: wires the engine and the store together."""
