"""Trees cut to a forced width or decided and kept whole, by the plug-in's worker."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from evict_profile.config.model import AttentionSpec, ModelSpec, MoeSpec
from evict_profile.integrations.sglang.decision import Metrics
from evict_profile.integrations.sglang.graphs import GraphState
from evict_profile.integrations.sglang.modes import ByTable, Mode
from evict_profile.integrations.sglang.plugin import hooks
from evict_profile.integrations.sglang.serving import Serving
from evict_profile.integrations.sglang.settings import Settings
from evict_profile.integrations.sglang.tree import Drafted, best_nodes
from evict_profile.table import (
    AXES,
    Acceptance,
    ActivationCurve,
    Axes,
    ConditionalAcceptance,
    CostTable,
    DraftClock,
    Drafting,
    Fit,
    Key,
    ServedSteps,
    Staircase,
    TermCost,
)
from runners.protocol import Refusal

MOST = 1 << 14
"""Requests, tokens, context of an assumed table: more than decisions need."""

ASSUMED = "assumed"


class Unmeasured(ServedSteps, frozen=True, tag=ASSUMED):
    """Steps that nobody timed, so that no cost is of a server."""


class ForcedWidth(Mode):
    """Verifies the likeliest nodes, so many tokens a request."""

    on_device = True
    width = 0

    def choose(self, batch: Any, drafted: Drafted) -> Tensor | None:
        if self.width == drafted.width:
            return None
        return best_nodes(drafted, self.width)


class Decided(ByTable):
    """Decides by a table as a server does, then keeps the whole tree."""

    def choose(self, batch: Any, drafted: Drafted) -> Tensor | None:
        super().choose(batch, drafted)
        self._chooser.skip()  # What is accepted is not of the tree that was chosen.
        return torch.arange(drafted.width - 1).repeat(len(drafted.index), 1)


class ForcedServing(Serving):
    """The plug-in's state with a width in place of a table, on a session's graphs.

    Outside of `cutting` and `deciding` the worker is SGLang's own.
    """

    def __init__(self) -> None:
        super().__init__(Settings(mode="on"))
        self._forced = ForcedWidth()

    def _asked_mode(self) -> Mode:
        return self._forced

    def _announcement(self) -> str:
        return "evict-profile: rounds are cut to forced widths"

    def run_on(self, states: dict[int, GraphState]) -> None:
        self._states, self.active = states, False

    @contextmanager
    def cutting(self, width: int) -> Iterator[None]:
        """Cut the trees of the steps within.

        Raises:
            Refusal: the last one's were not cut.
        """
        self.active, self._forced.width = True, width
        try:
            yield
            if self.width != width:
                raise Refusal(
                    "failed",
                    f"a round verified {self.width} tokens a request, not {width}; "
                    "the log says why trees are not cut",
                )
        finally:
            self.active, self.width = False, self.full_width

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Decide in the steps within, and verify whole trees.

        Raises:
            Refusal: the last one did not decide.
        """
        self._mode, self.active = self._decided_mode, True
        self._can_pause = self._mode.can_pause
        try:
            yield
            if not self.active:
                raise Refusal("failed", "a round did not decide; the log says why")
        finally:
            self._mode, self.active, self._can_pause = self._forced, False, False

    @cached_property
    def _decided_mode(self) -> Mode:
        return Decided(assumed_table(self._states), None, self.worker, Metrics())


def assumed_table(widths: Collection[int]) -> CostTable:
    """A table of all that a calibrated one has, each number assumed.

    A decision by it takes as long as by another; what is decided is not used.
    """
    line, cost_us = (0.0, 1.0), tuple(1e3 + 10.0 * t for t in range(MOST + 1))
    levels_us = tuple(100.0 * depth for depth in range(max(widths) + 1))
    one, shape = (1,), (AttentionSpec(1, 1, 1), MoeSpec(1, 1, 1))
    terms = TermCost("one", 0.0, None, 1e3), TermCost("tokens", 0.0, None, 10.0)
    return CostTable(
        key=Key.of(dict.fromkeys(Key.names(), ASSUMED) | {"tp": 1, "ep": 1}),
        version=ASSUMED,
        model=ModelSpec(ASSUMED, ASSUMED, 1, 1, 1, *shape),
        axes=Axes(one, one, one, one, MOST, tuple(sorted(widths))),
        fit=Fit(1, 1.0, (), terms, {}, None, dict.fromkeys(AXES, (1, MOST))),
        staircases=(Staircase(1, MOST, cost_us, cost_us, cost_us),),
        activation=ActivationCurve(ASSUMED, True, (1.0, 1.0)),
        gates=(),
        provenance=Unmeasured({}, "", 0, 0, "", (), 0.0, ()),
        acceptance=Acceptance(
            ASSUMED, 0, line, (line,), (0.5,), {}, ConditionalAcceptance(line, (line,))
        ),
        drafting=Drafting(ASSUMED, ASSUMED, (DraftClock(1, levels_us, 0.0, 0.0),)),
    )


def hook_the_worker(serving: Serving) -> None:
    """Put the plug-in's hooks into SGLang; before a worker is made."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook in hooks(serving).items():
        HookRegistry.register(target, hook, HookType.AROUND)
    HookRegistry.apply_hooks()
