"""Trees cut to a forced width or decided and kept whole, by the plug-in's worker."""

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from evict_profile import table
from evict_profile.acceptance import Acceptance, ConditionalAcceptance
from evict_profile.config.model import AttentionSpec, ModelSpec, MoeSpec
from evict_profile.drafting import DraftClock, Drafting
from evict_profile.integrations.environment import Settings
from evict_profile.integrations.sglang.decision import Metrics
from evict_profile.integrations.sglang.graphs import GraphState
from evict_profile.integrations.sglang.modes import ByTable, Mode
from evict_profile.integrations.sglang.plugin import hooks
from evict_profile.integrations.sglang.serving import Serving
from evict_profile.integrations.sglang.tree import Drafted, best_nodes
from evict_profile.table.provenance import Origin
from runners.protocol import Refusal

ASSUMED, MOST = "assumed", 1 << 14
"""The word for what is not measured; tokens and context of an assumed table."""


class Unmeasured(Origin, frozen=True, tag=ASSUMED):
    """Steps that nobody timed."""

    @property
    def noise(self) -> float:
        return 0.0


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

    def cutting(self, width: int) -> AbstractContextManager[None]:
        """Cut the trees of the steps within."""
        self._forced.width = width
        return self._running(self._forced, width)

    def deciding(self) -> AbstractContextManager[None]:
        """Decide the widths of the steps within, and verify whole trees."""
        return self._running(self._deciding_mode, self.full_width)

    @contextmanager
    def _running(self, mode: Mode, width: int) -> Iterator[None]:
        """Run the plug-in in the steps within; refuse if it left the last one alone."""
        self._run(mode)
        self.active = True
        try:
            yield
            if not self.active or self.width != width:
                found = f"a round verified {self.width} tokens a request, not {width}"
                undecided = f"{found} as the plug-in decides; the log says why"
                raise Refusal("failed", undecided)
        finally:
            self.active, self.width = False, self.full_width

    @cached_property
    def _deciding_mode(self) -> Mode:
        return Decided(assumed_table(self._states), None, self.worker, Metrics())


def assumed_table(widths: Collection[int]) -> table.CostTable:
    """A table with all parts of a calibrated one, so that decisions take as long."""
    line, one = (0.0, 1.0), (1,)
    costs_us = tuple(1e3 + 10.0 * tokens for tokens in range(MOST + 1))
    levels_us = tuple(100.0 * depth for depth in range(max(widths) + 1))
    clock = DraftClock(1, levels_us, 0.0, 0.0)
    terms = tuple(table.TermCost(name, 0.0, None, 10.0) for name in ("one", "tokens"))
    domain = dict.fromkeys(table.AXES, (1, MOST))
    by_parent = ConditionalAcceptance(line, (line,))
    shape = AttentionSpec(1, 1, 1), MoeSpec(1, 1, 1)
    facts = dict.fromkeys(table.Key.names(), ASSUMED) | {"tp": 1, "ep": 1}
    return table.CostTable(
        key=table.Key.of(facts),
        version=ASSUMED,
        model=ModelSpec(ASSUMED, ASSUMED, 1, 1, 1, *shape),
        axes=table.Axes(one, one, one, one, MOST, tuple(sorted(widths))),
        fit=table.Fit(1, 1.0, (), terms, {}, None, domain),
        staircases=(table.Staircase(1, MOST, costs_us, costs_us, costs_us),),
        activation=table.ActivationCurve(ASSUMED, True, line),
        gates=(),
        provenance=cast(table.Provenance, Unmeasured({}, "", 0, 0, "")),
        acceptance=Acceptance(ASSUMED, 0, line, (line,), (0.5,), {}, by_parent),
        drafting=Drafting(ASSUMED, ASSUMED, (clock,)),
    )


def hook_the_worker(serving: Serving) -> None:
    """Put the plug-in's hooks into SGLang; before a worker is made."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook in hooks(serving).items():
        HookRegistry.register(target, hook, HookType.AROUND)
    HookRegistry.apply_hooks()
