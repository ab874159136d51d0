"""How much of a decoded text the target without a budget would have said.

A budgeted model commits what it takes for the target's tokens, and reads keys and
values of its own ever after. So when a text is done, the whole target reads it in one
clean forward: at how many places is the token the one that it would have chosen?
Greedy decoding alone can be judged so.
"""

from collections.abc import Sequence

import numpy as np
import torch

from benchmarks.turns import Interval, Text, interval, resampled
from runners.tree_decoding.budget_session import BudgetSession
from runners.tree_decoding.session import TraceSession


class Judge:
    """The target without a budget, reading texts once each."""

    def __init__(self, session: TraceSession, tokens: int) -> None:
        """For replies of so many tokens at most."""
        self.plain = BudgetSession(session).plain(tokens)
        self.tokens = tokens
        self._agreed: dict[tuple[int, ...], int] = {}

    def judge(self, texts: Sequence[Text]) -> Interval:
        """Share of all tokens that are the target's; by resampling replies.

        What was decoded of one job twice, at the end of a run, is one reply.
        """
        jobs = max(text.job for text in texts) + 1
        agreed, tokens = np.zeros(jobs), np.zeros(jobs)
        for text in texts:
            ids = tuple(text.ids[: text.prompt + 1 + self.tokens])
            agreed[text.job] += self.agreed(ids, text.prompt)
            tokens[text.job] += len(ids) - text.prompt - 1
        decoded = tokens > 0
        return interval(resampled(agreed[decoded], tokens[decoded], seed=0))

    def agreed(self, ids: tuple[int, ...], prompt: int) -> int:
        """Tokens of a reply that the target would have chosen at their place.

        The first does not count: the prompt's forward gave it, and has no budget.
        """
        if ids not in self._agreed:
            self._agreed[ids] = self._read(ids, prompt)
        return self._agreed[ids]

    @torch.inference_mode()
    def _read(self, ids: Sequence[int], prompt: int) -> int:
        chosen = self.plain.logits(ids[:-1])[prompt:].argmax(dim=1)
        said = torch.tensor(ids[prompt + 1 :], device=chosen.device)
        return int((chosen == said).sum())
