"""Weights for a measurement: random, made on the device, and fast."""

import math

import torch
from torch import Tensor


class Noise:
    """Random weights at the speed of memory: one block of noise, copied around.

    The block's length is prime, so that no two experts get the same window of it.
    """

    LENGTH = 16_777_213

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        generator = torch.Generator(device).manual_seed(seed)
        block = torch.empty(self.LENGTH, device=device, dtype=dtype)
        self.block = block.normal_(generator=generator)
        self.offset = 0

    def weight(self, *sizes: int) -> Tensor:
        """A weight of these sizes, scaled by 1 / sqrt(its last, or inner, size)."""
        out = self.block.new_empty(sizes)
        flat, done = out.view(-1), 0
        while done < len(flat):
            step = min(len(flat) - done, self.LENGTH - self.offset)
            flat[done : done + step] = self.block[self.offset : self.offset + step]
            done, self.offset = done + step, (self.offset + step) % self.LENGTH
        return out.mul_(1.0 / math.sqrt(sizes[-1]))
