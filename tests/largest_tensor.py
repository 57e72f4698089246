"""The largest tensor that a computation makes; not a module of tests."""

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
