"""Puts a planted world into SGLang's processes, when the environment names one.

Everything real stays: kernels, graphs, the drafter's forwards, the choice of the tree,
the check of it. Only the numbers that trained weights would bring are replaced: the
drafter's guesses before they are chosen from, and the target's words before they are
compared. Both come from the batch at hand, in a few small kernels on the device.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.sglang_planted.world import PlantedWorld, Stage

ROWS = 64
"""Requests that run together at most; far more than are measured."""

EAGLE = "sglang.srt.speculative.eagle_worker_v2"


def register() -> None:
    """Register the hooks, if the environment names a world."""
    if (world := PlantedWorld.from_environment()) is not None:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        for target, hook in Planted(world).hooks().items():
            HookRegistry.register(target, hook, HookType.AROUND)


class Planted:
    """The hooks of one process."""

    def __init__(self, world: PlantedWorld) -> None:
        """Nothing is made before a drafter's graphs, or the first plain step."""
        self.world = world
        self._stage: Stage | None = None
        self._texts: dict[tuple[int, ...], Tensor] = {}
        self._running: tuple[int, ...] = ()

    def hooks(self) -> dict[str, Callable[..., Any]]:
        """The function around each hooked target."""
        return {
            "sglang.srt.managers.scheduler.Scheduler.run_batch": self.run_batch,
            "sglang.srt.layers.sampler.Sampler.forward": self.sample,
            f"{EAGLE}.EagleDraftWorker.init_cuda_graphs": self.allocate,
            f"{EAGLE}.EagleDraftWorker.draft": self.draft,
            f"{EAGLE}.EAGLEWorkerV2._build_trivial_verify_input": self.draft,
            f"{EAGLE}.select_top_k_tokens": self.select,
            "sglang.srt.speculative.eagle_utils.verify_tree_greedy_func": self.verify,
        }

    def run_batch(self, original: Any, scheduler: Any, batch: Any, *rest: Any) -> Any:
        """Learn which texts are decoded: prompts name them by their first token."""
        self._running = tuple(
            int(request.origin_input_ids[0]) % self.world.texts
            for request in batch.reqs
        )
        return original(scheduler, batch, *rest)

    def allocate(self, original: Any, drafter: Any) -> None:
        """Make the buffers before the draft graph, which will read them."""
        steps = drafter.speculative_num_steps
        self._stage = Stage(self.world, ROWS, steps, drafter.device)
        original(drafter)

    def draft(self, original: Any, worker: Any, batch: Any, **kwargs: Any) -> Any:
        """Set the scene of a step, also of one that drafts nothing."""
        if not batch.forward_mode.is_idle():
            lengths = batch.seq_lens
            stage = self._on(lengths.device)
            stage.set_scene(self._texts_on(lengths.device), lengths.long())
        return original(worker, batch, **kwargs)

    def select(
        self,
        original: Any,
        level: int,
        likely: Tensor,
        index: Tensor,
        hidden: Tensor,
        scores: Tensor,
        topk: int,
    ) -> Any:
        """Plant the guesses that SGLang then chooses from."""
        stage = self._on(likely.device)
        requests = len(likely) if level == 0 else len(likely) // topk
        planted, tokens = stage.guesses(level, requests)
        planted, tokens = planted.to(likely.dtype), tokens.to(index.dtype)
        out = original(level, planted, tokens, hidden, scores, topk)
        parents = out[3][2]
        if level == 0:
            stage.keep(parents[:, 1:])
        else:
            stage.keep(parents - (topk * topk * (level - 1) + topk))
        return out

    def verify(self, original: Any, **kwargs: Any) -> Any:
        """Plant what the target says, before it is compared with what was drafted."""
        drafted, said = kwargs["candidates"], kwargs["target_predict"]
        planted = self._on(drafted.device).says(drafted)
        return original(**kwargs | {"target_predict": planted.to(said.dtype)})

    def sample(
        self, original: Any, sampler: Any, logits: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Plant the tokens of plain decoding, and the first one behind a prompt."""
        sampled = original(sampler, logits, *args, **kwargs)
        positions = args[4] if len(args) > 4 else kwargs["positions"]
        texts = self._texts_on(sampled.device)
        planted = self._on(sampled.device).goes_on(texts, positions.long())
        return planted.to(sampled.dtype)

    def _on(self, device: torch.device) -> Stage:
        if self._stage is None:
            self._stage = Stage(self.world, ROWS, 0, device)
        return self._stage

    def _texts_on(self, device: torch.device) -> Tensor:
        """The running texts, copied to the device where they are new."""
        if self._running not in self._texts:
            texts = torch.tensor(self._running, dtype=torch.int64)
            self._texts[self._running] = texts.to(device, non_blocking=True)
        return self._texts[self._running]
