"""All use of Textual's private parts."""
