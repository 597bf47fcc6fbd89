"""What fills the terminal: one package per screen."""
