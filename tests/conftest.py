"""What holds for every test process."""

import os

# Two test processes share two cores. Read when torch is imported, so set before any test module is.
os.environ["OMP_NUM_THREADS"] = "1"
