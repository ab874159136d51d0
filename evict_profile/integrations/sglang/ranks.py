"""How the ranks that verify together agree on what they verify."""

from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from evict_profile.errors import ConfigError

START = timedelta(minutes=5)
"""Until each rank must have checked its server; SGLang allows 8 to load weights."""

Said = TypeVar("Said")


class Ranks:
    """The ranks that verify together; `group` is SGLang's coordinator of them.

    Rank 0 decides, since clocks differ between ranks, and scores can in their last
    bits; ranks with forwards of different widths would wait for each other for ever. A
    decision goes through SGLang's queue in shared memory, about three times as fast as
    a broadcast of gloo (docs/explanation/sglang-internals.md). Every method is called
    on all ranks, in the same order. One rank alone needs no group.
    """

    def __init__(self, group: Any = None) -> None:
        self.size = group.world_size if group else 1
        self.leads = not group or group.rank_in_group == 0
        self._group, self._exchanges = group, 0

    def all_of(self, said: Said) -> list[Said]:
        """What each rank says, in order of ranks; refused if one does not answer."""
        if self.size == 1:
            return [said]
        group, found = self._group.cpu_group, list[Any]([None] * self.size)
        try:
            torch.distributed.monitored_barrier(group, START, wait_all_ranks=True)
        except ValueError:
            pass  # Mooncake's groups have no such barrier.
        except RuntimeError as error:
            raise ConfigError(
                f"not all ranks answer ({str(error).splitlines()[0]}): all nodes need "
                "the plug-in and the same EVICT_PROFILE_ variables"
            ) from None
        torch.distributed.all_gather_object(found, said, group=group)
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

    def shared(self, said: Tensor) -> Tensor:
        """Rank 0's tensor, contiguous and on the device, written into this rank's."""
        return self._group.broadcast(said) if self.size > 1 and said.numel() else said
