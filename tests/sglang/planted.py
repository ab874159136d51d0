"""A plug-in for the tests: drafts that get accepted, and widths that are forced.

Loaded by SGLang in the engine's processes, beside the project's own. With weights as
SGLang makes dummies, the next token depends on the last one alone, so that a mistake in
the cache or in a tree's mask would go unseen; and nothing that the drafter says is ever
accepted. So weights are drawn such that the past matters, and the target's own next
tokens, known from plain decoding, are written into drafted nodes.
"""

import itertools
import json
import os
import random
import zlib
from dataclasses import dataclass, field
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

import torch

from tests.sglang.faults import plant_faults

SCRIPT = "PLANTED_SCRIPT"
"""Names a `Script`'s file; without it, only the weights are changed."""

STRETCH = 4
"""Steps in which drafts are accepted, and then as many in which none is."""

PAUSES = 7
"""Every so many steps, one drafts nothing."""

FEWER = 2
"""Every so many steps, one drafts all levels, if a step can draft fewer."""

LOGITS = "sglang.srt.layers.logits_processor.LogitsProcessor.forward"
DUMMIES = "sglang.srt.model_loader.weight_utils.initialize_dummy_weights"
EAGLE = "sglang.srt.speculative.eagle_worker_v2."


@dataclass(frozen=True)
class Script:
    """What a test tells the plug-in.

    Attributes:
        sequences: each prompt with its plain continuation behind it.
        decided: prompts for which the table decides the width, by their first token.
        log: the file that takes one line a step, [width, [tokens committed], paused,
            whether the table decided, whether fewer levels were drafted].
        chains: the file that takes one line a drafted chain, [path probabilities that
            the plug-in kept, and those that the drafter's logits say].
        routed: the file that takes one line a layer of a verification within a budget,
            [experts that may run, experts that ran, what each token counts].
        ranks: what goes wrong on each rank, keys of `FAULTS` with spaces between.
            Rank n writes in the file `log`.n the nodes that it verifies, and the
            experts that run them within a budget.
        hard: decided prompts whose drafts all fail, by their first token.
        easy: decided prompts whose drafts are right on one path to its end.
    """

    sequences: list[list[int]]
    decided: list[int]
    log: str
    chains: str
    routed: str
    ranks: list[str] = field(default_factory=list)
    hard: list[int] = field(default_factory=list)
    easy: list[int] = field(default_factory=list)


def register():
    """The entry point. The launcher, which decodes nothing, is left alone."""
    if parent_process() is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(DUMMIES, draw_weights, HookType.REPLACE)
    if SCRIPT not in os.environ:
        return
    planted = Planted(Script(**json.loads(Path(os.environ[SCRIPT]).read_text())))
    for name, hook in {
        "EagleDraftWorker.draft": planted.draft,
        "EagleDraftWorker.draft_forward": planted.chain,
        "EagleDraftWorker._draft_extend_for_prefill": planted.extend,
        "EagleDraftWorker._draft_extend_for_decode": planted.extend,
        "organize_draft_results": planted.organize,
        "EAGLEWorkerV2.verify": planted.verify,
    }.items():
        HookRegistry.register(EAGLE + name, hook, HookType.AROUND)
    HookRegistry.register(LOGITS, planted.see_logits, HookType.AROUND)
    if planted.script.ranks:
        plant_faults(planted.script.ranks)
    planted.force_widths()
    planted.force_pauses()
    planted.watch_budget()


def draw_weights(model, *args, **kwargs):
    """Weights that keep the scale of what goes through them; norms and blocks' scales
    are one, and biases of routers are not.

    Heads are larger: a drafter sure of some tokens has deep trees as well as wide ones.
    """
    for name, parameter in model.state_dict().items():
        if not torch.is_floating_point(parameter):
            continue
        if (parameter.dim() < 2 and "bias" not in name) or "scale" in name:
            parameter.fill_(1.0)
            continue
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        scale = 6.0 if "lm_head" in name else 1.0
        deviation = scale * parameter.shape[-1] ** -0.5
        drawn = torch.empty(parameter.shape).normal_(0, deviation, generator=generator)
        parameter.copy_(drawn)  # FP8 has no `normal_`


@dataclass
class Planted:
    """What the hooks share."""

    script: Script
    steps: int = 0
    asked: int = 0
    paused: bool = False
    dice: random.Random = field(default_factory=lambda: random.Random(3))
    worker: Any = None
    batch: Any = None
    decided: Any = field(default_factory=itertools.count)
    likeliest: list[Any] = field(default_factory=list)
    first: dict[str, float] = field(default_factory=dict)

    def draft(self, original, worker, batch, **kwargs):
        self.worker, self.batch, self.likeliest = worker, batch, []
        return original(worker, batch, **kwargs)

    def see_logits(self, original, *args, **kwargs):
        """Keep the largest probability of each row of any forward."""
        out = original(*args, **kwargs)
        probabilities = torch.log_softmax(out.next_token_logits.double(), -1).exp()
        self.likeliest.append(probabilities.amax(-1))
        return out

    def extend(self, original, drafter, batch, *rest, **kwargs):
        """Keep the probability of each request's first token of the next chain."""
        out = original(drafter, batch, *rest, **kwargs)
        rows = self.likeliest[-1].view(len(batch.reqs), -1)
        accepted = getattr(rest[0], "accept_lens", None)
        last = [0] * len(rows) if accepted is None else (accepted - 1).tolist()
        for request, row, place in zip(batch.reqs, rows, last, strict=True):
            self.first[request.rid] = float(row[place])
        return out

    def chain(self, original, drafter, forward_batch):
        """Plant in each request's chain, which nothing organizes."""
        parents, index, drafted, *rest = original(drafter, forward_batch)
        if drafter.topk == 1:
            self._plant(parents, index, drafted, torch.ones(drafted.shape))
        return parents, index, drafted, *rest

    def organize(self, original, scores, tokens, parents, count):
        """Plant in each request's tree, once its nodes are chosen."""
        parent_list, index, drafted = original(scores, tokens, parents, count)
        score = torch.cat(list(scores), dim=1).flatten(1).gather(1, index)
        self._plant(parent_list, index, drafted, score)
        return parent_list, index, drafted

    def _plant(self, parent_list, index, drafted, score):
        for row, coming in enumerate(self._coming()):
            # A chain of fewer levels has fewer tokens than places.
            places = index[row, : drafted.shape[1]].tolist()
            children = _children(places, parent_list[row], self.worker.topk)
            path = self._path(children, score[row].tolist(), len(coming))
            drafted[row, path] = torch.tensor(coming[: len(path)], dtype=drafted.dtype)

    def verify(self, original, worker, batch, *rest, **k):
        """Write down how wide the step was, and what it committed; each rank, what
        it verified.
        """
        width, rank = batch.spec_info.draft_token_num, torch.distributed.get_rank()
        self._note_of_rank(batch.spec_info.draft_token)
        if worker.topk == 1 and rank == 0 and not self.paused:
            self._note_chains(worker.evict_profile.scores.last(len(batch.reqs)))
        result = original(worker, batch, *rest, **k)
        if rank == 0:
            said = [width, result.accept_lens.tolist(), self.paused]
            fewer = worker.evict_profile.fewer.chosen
            self._note(self.script.log, [*said, self._is_decided(batch), fewer])
        self.paused = False
        return result

    def _is_decided(self, batch):
        return batch.reqs[0].origin_input_ids[0] in self.script.decided

    def _note_chains(self, kept):
        for row, request in enumerate(self.batch.reqs):
            each = [self.first[request.rid], *(p[row] for p in self.likeliest)]
            said = torch.tensor(each, dtype=torch.float64).cumprod(0).tolist()
            self._note(self.script.chains, [kept[row].tolist(), said])

    def _note_of_rank(self, said):
        if self.script.ranks:
            rank = torch.distributed.get_rank()
            self._note(f"{self.script.log}.{rank}", said.tolist())

    def _note(self, path, said):
        with Path(path).open("a") as log:
            log.write(json.dumps(said) + "\n")

    def force_widths(self):
        """Go through all widths, one a step, where the table would decide on one."""
        from evict_profile.integrations.sglang.modes import ByTable
        from evict_profile.integrations.sglang.tree import best_nodes

        decide = ByTable.choose

        def forced(mode, batch, drafted):
            if self._is_decided(batch):
                return decide(mode, batch, drafted)
            self.steps += 1
            return best_nodes(drafted, 1 + self.steps % drafted.width)

        ByTable.choose = forced  # type: ignore[method-assign]

    def force_pauses(self):
        from evict_profile.integrations.sglang.modes import ByTable

        begin, decide = ByTable.__init__, ByTable.steps

        def begun(mode, *given):
            begin(mode, *given)
            mode.can_pause = True

        def forced(mode, batch):
            if self._is_decided(batch):
                return decide(mode, batch)
            self.asked += 1
            self.paused = not self.asked % PAUSES
            if self.paused:
                return 0
            return (self.asked % FEWER and mode.fewer_steps) or None

        ByTable.__init__ = begun  # type: ignore[method-assign]
        ByTable.steps = forced  # type: ignore[method-assign]

    def watch_budget(self):
        """Write down what routing within a budget is given, and gives."""
        from evict_profile.integrations.sglang import router

        route = router.route

        def watched(probabilities, top_k, most, **how):
            routes = route(probabilities, top_k, most, **how)
            ran = len(routes.topk_ids.unique())
            self._note(self.script.routed, [most, ran, how["node_weights"].tolist()])
            self._note_of_rank(routes.topk_ids)
            return routes

        router.route = watched

    def _coming(self):
        """The tokens behind each request's last one; none if that went astray.

        Where the table decides, every other stretch has none, so that decisions differ.
        """
        decided = self._is_decided(self.batch) and not self._is(self.script.easy)
        if self._is(self.script.hard):
            return [[]] * len(self.batch.reqs)
        if decided and next(self.decided) % (2 * STRETCH) >= STRETCH:
            return [[]] * len(self.batch.reqs)
        state = zip(
            self.batch.reqs,
            self.batch.seq_lens.tolist(),
            self.batch.spec_info.bonus_tokens.tolist(),
            strict=True,
        )
        return [self._after(list(r.origin_input_ids), n, last) for r, n, last in state]

    def _is(self, prompts):
        return self.batch.reqs[0].origin_input_ids[0] in prompts

    def _after(self, prompt, length, last):
        known = next(s for s in self.script.sequences if s[: len(prompt)] == prompt)
        return known[length + 1 :] if known[length] == last else []

    def _path(self, children, scores, longest):
        """A path of any length from the root: the best children, or any at all."""
        most = min(longest, self.worker.speculative_num_steps)
        easy = self._is(self.script.easy)
        wanted = most if easy else self.dice.randint(0, most)
        by_score = easy or self.dice.random() < 0.7
        path: list[int] = []
        while len(path) < wanted and (at := children.get(_end(path))):
            best = max(at, key=lambda node: scores[node])
            path.append(best if by_score else self.dice.choice(at))
        return path


def _end(path):
    return path[-1] if path else -1


def _children(index, parents, topk):
    """The nodes under each, by their place in the tree; -1 is the root."""
    found: dict[int, list[int]] = {}
    for place, flat in enumerate(index):
        group = flat // topk
        above = index.index(int(parents[group])) if group else -1
        found.setdefault(above, []).append(place)
    return found
