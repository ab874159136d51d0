"""What a decision reads is brought to the host."""

import torch

from evict_profile.integrations.sglang.host import Host


def test_what_lies_on_the_host_is_not_copied() -> None:
    """Nothing is pinned without a device."""
    tensors = (torch.zeros(2, 3), torch.zeros(0, dtype=torch.int32))
    found = Host().fetch(*tensors)
    assert all(a is b for a, b in zip(found, tensors, strict=True))
