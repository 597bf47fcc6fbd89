"""Every test process multiplies with one thread, so that parallel tests do not oversubscribe."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
