"""The process that runs environments and tools."""
