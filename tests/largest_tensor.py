"""The largest tensor that a computation makes, and what it keeps; not a module of tests."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Largest(TorchDispatchMode):
    """Within it, `size` is the number of elements of the largest result of any operation, backward passes too."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for x in result if isinstance(result, tuple | list) else [result]:
            if isinstance(x, torch.Tensor):
                self.size = max(self.size, x.numel())
        return result


class Kept(torch.autograd.graph.saved_tensors_hooks):
    """Within it, `bytes` is what forward passes keep for their backward passes, every storage once."""

    def __init__(self):
        storages = {}

        def note(x):
            storages[x.untyped_storage().data_ptr()] = x.untyped_storage()  # held, so that no place is taken twice
            return x

        super().__init__(note, lambda x: x)
        self._storages = storages

    def __enter__(self):
        super().__enter__()
        return self

    @property
    def bytes(self):
        return sum(storage.nbytes() for storage in self._storages.values())
