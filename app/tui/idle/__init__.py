"""Work done while no key is pressed."""
