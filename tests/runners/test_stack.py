"""Memory is counted before it is taken, and counted right."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from runners.protocol import Refusal
from runners.torch_moe import stack as stack_module
from runners.torch_moe.shape import Noise, Shape
from runners.torch_moe.stack import Stack, fitting_layers, layer_bytes, non_moe_bytes

Small = Callable[..., Shape]
SLOTS = (2, 20)
CPU = torch.device("cpu")


def weights(thing: object) -> Iterator[Tensor]:
    """Every floating-point tensor that an object holds."""
    if isinstance(thing, Tensor):
        if thing.is_floating_point():
            yield thing
    elif isinstance(thing, list | tuple):
        for part in thing:
            yield from weights(part)
    elif type(thing).__module__.startswith("runners."):
        yield from weights(list(vars(thing).values()))


def taken(thing: object) -> int:
    """Bytes of all weights and caches of an object."""
    return sum(tensor.nbytes for tensor in weights(thing))


@pytest.mark.parametrize("mla", [False, True])
@pytest.mark.parametrize("shared_width", [0, 24])
def test_a_layer_takes_what_was_counted(
    small: Small, noise: Noise, mla: bool, shared_width: int
) -> None:
    """Weights and KV cache, to the byte."""
    shape = small(mla=mla, shared_width=shared_width)
    built = Stack(shape, SLOTS, noise)
    assert taken(built.moe[0]) == layer_bytes(shape, SLOTS)


@pytest.mark.parametrize("mla", [False, True])
def test_the_ends_take_what_was_counted(small: Small, noise: Noise, mla: bool) -> None:
    """Embedding, head and dense layers, to the byte; their caches are not counted."""
    shape = small(mla=mla, dense_layers=2, dense_width=40)
    built = Stack(shape, SLOTS, noise)
    built_bytes = taken([built.dense, built.embedding, built.head])
    assert built_bytes == non_moe_bytes(shape, SLOTS)


def test_layers_fill_nine_tenths_of_the_memory(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room is left for activations."""
    shape = small()
    free = (non_moe_bytes(shape, SLOTS) + 3.5 * layer_bytes(shape, SLOTS)) / 0.9
    monkeypatch.setattr(stack_module, "free_bytes", lambda _: int(free))
    assert fitting_layers(shape, SLOTS, CPU) == 3


def test_no_room_for_one_layer_is_refused(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message has what is needed, what is free, and what to change."""
    monkeypatch.setattr(stack_module, "free_bytes", lambda _: 1000)
    with pytest.raises(Refusal, match=r"needs .* GB, and .* free.* shorter") as caught:
        fitting_layers(small(), SLOTS, CPU)
    assert caught.value.kind == "memory"


def test_free_memory_is_positive() -> None:
    """Read from the system, within the limits of this process."""
    assert stack_module.free_bytes(CPU) > 0
