"""Training: the target first, then the drafter on the trained target.

What ends a phase is its number of steps or its share of the time, whichever is first;
the learning rate follows the same progress, so that a slow machine trains less, and
still to the end.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from examples.small_world.corpus import Tokens
from examples.small_world.drafting import draft_loss, unroll
from examples.small_world.engine.drafter import Drafter
from examples.small_world.recipe import Phase, Recipe
from examples.small_world.target import Target, loads

WARM_UP, LAST_RATE = 0.03, 0.02
"""Share of a phase in which the rate rises; what it falls to, linearly, by the end."""

CLIP = 1.0
REPORTS = 40
CHECKS = 10
"""Progress lines and held-out checks of a phase."""

CHECK_SEQUENCES = 16

Report = Callable[[], str]
"""Says what a step found; asking costs a GPU a wait, so only some steps are asked."""


class Models:
    """Target, drafter and what is needed to train them."""

    def __init__(self, recipe: Recipe, seed: int, device: torch.device) -> None:
        torch.manual_seed(seed)
        self.recipe, self.seed, self.device = recipe, seed, device
        self.target = Target(recipe.shape).to(device)
        self.drafter = Drafter(recipe.shape, recipe.draft_width).to(device)

    def autocast(self) -> torch.autocast:
        """Products in bfloat16, where the recipe says so."""
        kind = self.device.type
        return torch.autocast(kind, torch.bfloat16, enabled=self.recipe.autocast)

    def target_loss(self, ids: Tensor) -> tuple[Tensor, Report]:
        """Loss of token ids [B, T], and what to report of it."""
        found = self.target(ids)
        logits = found.logits[:, :-1].flatten(0, 1).float()
        loss = F.cross_entropy(logits, ids[:, 1:].flatten())

        def report() -> str:
            experts = self.recipe.shape.experts
            health = routing_health(found.routes, found.entropy.item(), experts)
            return f"{loss.item():.3f}  {health}"

        return loss + self.recipe.balance * found.balance, report

    def draft_losses(self, ids: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Loss and top-1 agreement with the target of each draft step."""
        with torch.no_grad():
            found = self.target(ids)
        streams = [stream[:, :-1] for stream in found.features]
        embedded = F.embedding(ids[:, 1:], self.target.embedding.detach())
        outs = unroll(
            self.drafter, embedded, self.drafter.feature(streams), self.recipe.unroll
        )
        losses, agreements = [], []
        for step, out in enumerate(outs):
            logits = self.drafter.logits(out[:, step:], self.target.head.detach())
            wanted = found.logits[:, 1 + step :]
            losses.append(draft_loss(logits, wanted).mean())
            same = logits.argmax(dim=-1) == wanted.argmax(dim=-1)
            agreements.append(same.float().mean())
        return losses, agreements

    def drafter_loss(self, ids: Tensor) -> tuple[Tensor, Report]:
        """Loss of token ids [B, T] over all draft steps, and what to report of it."""
        losses, agreements = self.draft_losses(ids)
        decay = self.recipe.draft_decay
        whole = torch.stack([loss * decay**i for i, loss in enumerate(losses)]).sum()

        def report() -> str:
            agreed = " ".join(f"{a.item():.3f}" for a in agreements)
            return f"{losses[0].item():.3f}  agreement by depth {agreed}"

        return whole, report


def rate_at(done: float) -> float:
    """Learning rate over its highest, at a share of the phase."""
    falling = 1.0 - (1.0 - LAST_RATE) * done
    return min(falling, (done + 1e-3) / WARM_UP)


def draw_batch(
    stream: Tensor, phase: Phase, length: int, seed: tuple[int, int]
) -> Tensor:
    """Token ids [B, T] of random places of a stream, given by seed and step."""
    generator = torch.Generator().manual_seed(seed[0] * 1_000_003 + seed[1])
    starts = torch.randint(len(stream) - length, (phase.batch, 1), generator=generator)
    return stream[starts + torch.arange(length)].long()


def check_batch(stream: Tensor, length: int) -> Tensor:
    """The first sequences [B, T] of a held-out stream."""
    count = min(CHECK_SEQUENCES, len(stream) // length)
    return stream[: count * length].view(count, length).long()


@dataclass(frozen=True)
class Health:
    """Routing of some tokens: the busiest expert's load over the mean one, mean over
    layers and of the worst; experts without a token; entropy over that of uniform, 0
    where there is one expert."""

    peak: float
    worst: float
    dead: int
    entropy: float

    def __str__(self) -> str:
        return (
            f"load max/mean {self.peak:.2f} (worst layer {self.worst:.2f})"
            f"  dead {self.dead}  entropy {self.entropy:.2f}"
        )


def routing_health(routes: Tensor, entropy: float, experts: int) -> Health:
    """Health of routes [layers, N, k] and their mean entropy in nats."""
    counts = torch.stack([loads(layer, experts) for layer in routes]).double()
    peaks = counts.amax(dim=1) / counts.mean(dim=1)
    return Health(
        peak=float(peaks.mean()),
        worst=float(peaks.max()),
        dead=int((counts == 0).sum()),
        entropy=entropy / math.log(max(experts, 2)),
    )


class Training:
    """One phase, of the target or of the drafter: steps done and seconds spent."""

    def __init__(
        self, models: Models, tokens: Tokens, phase: str, minutes: float
    ) -> None:
        self.models, self.tokens, self.name = models, tokens, phase
        self.step, self.seconds = 0, 0.0
        on_target = phase == "target"
        self.phase = models.recipe.target if on_target else models.recipe.drafter
        self.model: nn.Module = models.target if on_target else models.drafter
        self.loss = models.target_loss if on_target else models.drafter_loss
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )
        self.limit_s = minutes * 60.0 * self.phase.share

    @property
    def done(self) -> float:
        return max(self.step / self.phase.steps, self.seconds / self.limit_s)

    def run(self) -> Iterator[str]:
        """Train to the end; yields lines of progress."""
        reported = checked = -1
        lap = time.monotonic()
        while self.done < 1.0:
            report = self.make_step()
            now = time.monotonic()
            pace, lap = now - lap, now
            self.step, self.seconds = self.step + 1, self.seconds + pace
            if int(self.done * REPORTS) > reported:
                reported = int(self.done * REPORTS)
                yield self.describe(report(), pace)
            if int(self.done * CHECKS) > checked:
                checked = int(self.done * CHECKS)
                yield self.check()

    def make_step(self) -> Report:
        models, recipe = self.models, self.models.recipe
        seed = (models.seed, self.step)
        ids = draw_batch(self.tokens.train, self.phase, recipe.length, seed)
        with models.autocast():
            loss, report = self.loss(ids.to(models.device))
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        for group in self.optimiser.param_groups:
            group["lr"] = self.phase.rate * rate_at(self.done)
        self.optimiser.step()
        self.optimiser.zero_grad()
        return report

    def describe(self, found: str, seconds: float) -> str:
        pace = self.phase.batch * self.models.recipe.length / seconds
        left = max(0.0, self.seconds * (1.0 / self.done - 1.0) / 60.0)
        return (
            f"{self.name} step {self.step}/{self.phase.steps}  loss {found}  "
            f"{pace:,.0f} tokens/s  {left:.1f} min left"
        )

    @torch.no_grad()
    def check(self) -> str:
        parts = []
        for workload, stream in self.tokens.held_out.items():
            ids = check_batch(stream, self.models.recipe.length).to(self.models.device)
            with self.models.autocast():
                parts.append(f"{workload} {self.loss(ids)[1]()}")
        return "  held out: " + "; ".join(parts)
