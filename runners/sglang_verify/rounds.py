"""Trees cut to a forced width, by the plug-in's own worker."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from evict_profile.integrations.sglang.graphs import GraphState
from evict_profile.integrations.sglang.modes import Mode
from evict_profile.integrations.sglang.plugin import hooks
from evict_profile.integrations.sglang.serving import Serving
from evict_profile.integrations.sglang.settings import Settings
from evict_profile.integrations.sglang.tree import Drafted, best_nodes
from runners.protocol import Refusal


class ForcedWidth(Mode):
    """Verifies the likeliest nodes, so many tokens a request."""

    on_device = True
    width = 0

    def choose(self, batch: Any, drafted: Drafted) -> Tensor | None:
        if self.width == drafted.width:
            return None
        return best_nodes(drafted, self.width)


class ForcedServing(Serving):
    """The plug-in's state with a width in place of a table, on a session's graphs.

    Outside of `cutting` the worker is SGLang's own.
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


def hook_the_worker(serving: Serving) -> None:
    """Put the plug-in's hooks into SGLang; before a worker is made."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook in hooks(serving).items():
        HookRegistry.register(target, hook, HookType.AROUND)
    HookRegistry.apply_hooks()
