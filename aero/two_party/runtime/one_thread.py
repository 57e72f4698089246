"""Lets libraries compute on one thread when it is imported; the fork server imports it before them.

A process with several threads must not fork.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
