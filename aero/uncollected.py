"""Turns garbage collection off when it is imported; a fork server imports it first.

Collection takes a quarter of the time of importing JAX and PyTorch. What is forked turns it on again.
"""

import gc

gc.disable()
