"""What to train, and for how long."""

from dataclasses import dataclass, replace

from examples.small_world.engine.drafter import TargetShape


@dataclass(frozen=True)
class Phase:
    """Training of one model, target or drafter: optimiser steps, if its share of the
    whole time allows them, the highest learning rate, and sequences a step."""

    steps: int
    share: float
    rate: float
    batch: int


@dataclass(frozen=True)
class Recipe:
    """Sizes and training of a small world.

    `draft_width` is of the drafter's MLP, `balance` the load-balance loss's weight,
    `unroll` the draft steps that the drafter is trained through, `draft_decay` the
    weight of each against the one before it. Contexts over `length` are untrained.
    """

    shape: TargetShape
    draft_width: int
    length: int
    balance: float
    unroll: int
    draft_decay: float
    autocast: bool
    minutes: float
    target: Phase
    drafter: Phase


# Many thin layers: a draft step then costs little beside a target step. Four layers
# were too few, and a balance weight of 0.001 let the router collapse.
CPU = Recipe(
    shape=TargetShape(
        vocab=1024,
        hidden=128,
        layers=16,
        heads=4,
        key_heads=2,
        head_dim=32,
        experts=64,
        top_k=4,
        expert_width=20,
    ),
    draft_width=512,
    length=256,
    balance=0.02,
    unroll=4,
    draft_decay=0.9,
    autocast=False,
    minutes=30.0,
    target=Phase(steps=1050, share=0.66, rate=5e-3, batch=16),
    drafter=Phase(steps=600, share=0.30, rate=4e-3, batch=16),
)
# Seconds on any machine, through every line of the code.
TINY = replace(
    CPU,
    shape=TargetShape(512, 32, 2, 2, 1, 16, experts=4, top_k=2, expert_width=16),
    draft_width=64,
    length=32,
    unroll=3,
    autocast=True,
    minutes=1.0,
    target=Phase(steps=6, share=0.6, rate=3e-3, batch=2),
    drafter=Phase(steps=4, share=0.3, rate=3e-3, batch=2),
)
RECIPES = {"cpu": CPU, "tiny": TINY}
