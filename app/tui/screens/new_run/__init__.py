"""New run: settings as a form that is checked, tried out, estimated and launched."""
