"""What depends on the machine: device, threads, priority, memory, number formats, folders."""
