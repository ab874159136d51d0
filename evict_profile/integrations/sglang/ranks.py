"""Ranks of tensor parallelism verify the same nodes: rank 0 decides, others follow.

Clocks differ between ranks, and scores can differ in their last bits. Ranks that
decided apart would launch forwards of different widths, and wait for each other for
ever. A decision goes through SGLang's queue in shared memory, about three times as fast
as a broadcast of gloo (`benchmarks.rank_broadcast`).
"""

from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from evict_profile.errors import ConfigError

Said = TypeVar("Said")


class Ranks:
    """The ranks that verify together; `group` is SGLang's coordinator of them.

    Every method is called on all ranks, in the same order. One rank alone needs no
    group.
    """

    def __init__(self, group: Any = None) -> None:
        self.size = group.world_size if group else 1
        self.leads = not group or group.rank_in_group == 0
        self._group, self._exchanges = group, 0

    def all_of(self, said: Said) -> list[Said]:
        """What each rank says, in order of ranks."""
        if self.size == 1:
            return [said]
        found: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(found, said, group=self._group.cpu_group)
        return found

    def decided(self, said: Said, what: str, requests: int) -> Said:
        """What rank 0 says of a batch of so many requests.

        Raises:
            ConfigError: rank 0 decides something else, or of another step or batch.
        """
        if self.size == 1:
            return said
        self._exchanges += 1
        here = self._exchanges, what, requests
        there, heard = self._group.broadcast_object((here, said))
        if there != here:
            raise ConfigError(
                "evict-profile: this rank is at exchange {} ({} of {} requests), and "
                "rank 0 at {} ({} of {}): ranks do not decode the same batch, and the "
                "server must end".format(*here, *there)
            )
        return cast(Said, heard)

    def shared(self, scores: Tensor) -> Tensor:
        """Rank 0's scores, contiguous and on the device, written into this rank's."""
        return self._group.broadcast(scores) if self.size > 1 else scores
