"""A world in which what a target says, and how well it is drafted, is planted.

Dummy weights accept nothing, and a published head cannot be had everywhere; but time
follows shapes, widths and routes, not meaning. So texts are made up beforehand: a token
for each position, and how sure the drafter is of it. A target always goes on with its
text, whoever drafts, whatever is verified. So three things are true by construction:

- A node's child is right with exactly the probability that the drafter gives it.
- One draw decides for a position of a text, so a cut tree accepts what the whole tree
  accepts, as far as it reaches, and all ways of decoding pass the same easy and hard
  stretches.
- All ways of decoding say the same tokens, so that a mistake in what was verified or
  cached shows, on any device.

Only tensors here; `plugin` puts them into SGLang. Nothing waits for the device.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from evict_profile.records import to_mapping

VARIABLE = "PLANTED_WORLD"
EASY, HARD = (0.80, 0.97), (0.35, 0.60)
"""Between which a first guess is right, in easy and in hard stretches."""

STRETCH = 24
"""Mean length of a stretch, in tokens."""

MISSED = 0.2
"""Share of what the first guess misses that no other guess hits either."""

CLASSES = 32
"""Tokens of neighbouring positions belong to different classes, wrong ones to one more,
so that a wrong token is never right by chance."""


@dataclass(frozen=True)
class PlantedWorld:
    """Texts with `topk` guesses at each position, after `positions` of which they begin
    anew; a prompt names its own text by its first token."""

    vocabulary: int
    topk: int
    seed: int = 0
    texts: int = 64
    positions: int = 8192

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] = os.environ
    ) -> "PlantedWorld | None":
        """The world of a server, if its environment names one."""
        text = environment.get(VARIABLE)
        return cls(**json.loads(text)) if text else None

    def as_variable(self) -> dict[str, str]:
        """The variable that names this world to a server."""
        return {VARIABLE: json.dumps(to_mapping(self))}

    @cached_property
    def tokens(self) -> Tensor:
        """int64 [texts, positions]."""
        value = torch.randint(
            self.kinds, (self.texts, self.positions), generator=self._generator(1)
        )
        return value * (CLASSES + 1) + torch.arange(self.positions) % CLASSES

    @cached_property
    def probabilities(self) -> Tensor:
        """float32 [texts, positions, topk], decreasing: of each guess at a position."""
        first = self._first_guess()[..., None]
        shares = 0.5 ** torch.arange(self.topk - 1)
        others = (1.0 - first) * (1.0 - MISSED) * shares / shares.sum().clamp(min=1.0)
        return torch.cat([first, others.clamp(max=first)], dim=-1).float()

    @cached_property
    def right(self) -> Tensor:
        """int64 [texts, positions]: which guess is right, `topk` where none is."""
        drawn = torch.rand(self.texts, self.positions, 1, generator=self._generator(3))
        return (drawn >= self.probabilities.cumsum(-1)).sum(-1)

    def behind(self, text: int, length: int, count: int) -> list[int]:
        """The tokens that follow a prompt of some length."""
        at = torch.arange(length, length + count) % self.positions
        return list(map(int, self.tokens[text, at]))

    @property
    def kinds(self) -> int:
        """Tokens of one class."""
        return self.vocabulary // (CLASSES + 1)

    def _first_guess(self) -> Tensor:
        source = self._generator(2)
        shape = (self.texts, self.positions)
        turns = torch.rand(shape, generator=source) < 1.0 / STRETCH
        begin = torch.randint(2, (self.texts, 1), generator=source)
        hard = (turns.cumsum(1) + begin) % 2 == 1
        spread = torch.rand(shape, generator=source)
        low = torch.where(hard, HARD[0], EASY[0])
        return low + spread * (torch.where(hard, HARD[1], EASY[1]) - low)

    def _generator(self, purpose: int) -> torch.Generator:
        return torch.Generator().manual_seed(10 * self.seed + purpose)


class Stage:
    """A step's drafts and the target's words, in buffers that captured graphs read."""

    def __init__(
        self, world: PlantedWorld, rows: int, steps: int, device: torch.device | str
    ) -> None:
        """Buffers; make them before any graph is captured."""
        if steps >= CLASSES - 1:
            raise ValueError(f"{steps} levels: planted texts distinguish {CLASSES - 2}")
        self.world, self.rows, self.steps = world, rows, steps
        self._tokens = world.tokens.flatten().to(device)
        self._probabilities = world.probabilities.flatten(0, 1).to(device)
        self._right = world.right.flatten().to(device)
        self._levels = torch.arange(steps + 1, device=device)
        shape = (rows, steps)
        self.place = torch.zeros(shape, dtype=torch.int64, device=device)
        self.right = torch.zeros(shape, dtype=torch.int64, device=device)
        self.token = torch.zeros((rows, steps + 1), dtype=torch.int64, device=device)
        self.probability = torch.full((rows, steps, world.topk), 0.1, device=device)
        self._on_text: Tensor

    def set_scene(self, texts: Tensor, lengths: Tensor) -> None:
        """Before a step: which text each request is of, how many tokens are cached.

        The root of its tree is the token behind those, and the first level the next.
        """
        at = (lengths[:, None] + 1 + self._levels) % self.world.positions
        place = texts[:, None] * self.world.positions + at
        requests, drafted = len(texts), place[:, : self.steps]
        self.place[:requests] = drafted
        self.right[:requests] = self._right[drafted]
        self.token[:requests] = self._tokens[place]
        self.probability[:requests] = self._probabilities[drafted]

    def guesses(self, level: int, requests: int) -> tuple[Tensor, Tensor]:
        """Probabilities and tokens of a level's guesses, [requests x parents, topk].

        Only below the node that goes on with the text is one of them right.
        """
        topk = self.world.topk
        parents = 1 if level == 0 else topk
        if level == 0:
            self._on_text = torch.ones_like(self.right[:requests, :1], dtype=torch.bool)
        guess = torch.arange(topk, device=self.right.device)
        is_right = self._on_text[:, :, None] & (
            guess == self.right[:requests, level, None, None]
        )
        token = self.token[:requests, level, None, None]
        tokens = torch.where(is_right, token, self._wrong(level, requests, parents))
        self._is_right = is_right.flatten(1)
        shape = (requests, parents, topk)
        likely = self.probability[:requests, level, None, :].expand(shape)
        return likely.reshape(-1, topk), tokens.reshape(-1, topk)

    def keep(self, chosen: Tensor) -> None:
        """After a level: which of its guesses, [requests, topk], are gone on with."""
        self._on_text = self._is_right.gather(1, chosen)

    def says(self, drafted: Tensor) -> Tensor:
        """The target's next token at each node, int64 [requests, nodes].

        At the root, and at nodes that go on with the text, it is the text's next token;
        no other node is ever reached.
        """
        token = self.token[: len(drafted)]
        on_text = drafted[:, :, None] == token[:, None, : self.steps]
        depth = (on_text * self._levels[1:]).amax(-1)
        depth[:, 0] = 0
        return token.gather(1, depth)

    def goes_on(self, texts: Tensor, positions: Tensor) -> Tensor:
        """Plain decoding: the tokens behind those at some positions."""
        at = (positions + 1) % self.world.positions
        return self._tokens[texts * self.world.positions + at]

    def _wrong(self, level: int, requests: int, parents: int) -> Tensor:
        """Different tokens for different guesses, none of them right anywhere."""
        each = torch.arange(parents * self.world.topk, device=self.place.device)
        value = self.place[:requests, level, None] * 7919 + each * 104729
        tokens = value % self.world.kinds * (CLASSES + 1) + CLASSES
        return tokens.view(requests, parents, self.world.topk)
