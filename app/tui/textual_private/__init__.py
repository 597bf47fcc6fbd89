"""All use of Textual's private API, which may change with any release."""
