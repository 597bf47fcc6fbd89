"""All that depends on the machine: device, BLAS, threads, memory."""
