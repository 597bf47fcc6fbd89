"""Work that is done while no key is pressed."""
