"""The store as the workbench asks it, off the thread that draws."""
