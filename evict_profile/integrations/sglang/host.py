"""One copy from the device to the host, of all that a decision reads."""

import torch
from torch import Tensor


class Host:
    """Pinned buffers, one for each size, and one wait for all copies of a step."""

    def __init__(self) -> None:
        """Nothing is allocated before the first copy."""
        self._pinned: dict[tuple[torch.Size, torch.dtype, int], Tensor] = {}

    def fetch(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The tensors on the host, valid until the next fetch; waits for the device."""
        if not any(tensor.is_cuda for tensor in tensors):
            return tensors
        copies = tuple(
            self._copy(place, tensor) if tensor.is_cuda else tensor
            for place, tensor in enumerate(tensors)
        )
        torch.cuda.current_stream().synchronize()
        return copies

    def _copy(self, place: int, tensor: Tensor) -> Tensor:
        key = (tensor.shape, tensor.dtype, place)
        if key not in self._pinned:
            self._pinned[key] = torch.empty(
                tensor.shape, dtype=tensor.dtype, pin_memory=True
            )
        return self._pinned[key].copy_(tensor, non_blocking=True)
