"""Sums over prompts under each setting, resampled: what every number is made of.

Speed is all tokens over all time, and quality a mean over tokens, so an interval must
resample what is independent: prompts. Every setting has the same prompts, and all take
the same resamples, so that most of the spread between prompts cancels in a comparison.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from evict_profile.budgets.load import BudgetRecord, Steps
from evict_profile.budgets.prices import Prices
from evict_profile.budgets.schema import Setting
from evict_profile.stats import Bootstrap, Floats

Sums = dict[str, Floats]
"""By name, float64 [1 + resamples]; the first of each is the sum as it was found."""


@dataclass(frozen=True, eq=False)
class Draws:
    """What one setting came to in every resample, float64 [1 + resamples] each.

    Attributes:
        setting: it.
        decoded, given: sums over the text it decoded, and over held-out text.
        predicted: sums over the steps of `none`, at what this budget allows.
    """

    setting: Setting
    decoded: Sums
    given: Sums
    predicted: Sums

    @cached_property
    def tokens_per_s(self) -> Floats:
        """Expected speed on decoded text."""
        return 1e6 * self.decoded["tokens"] / self.decoded["us"]

    @cached_property
    def committed(self) -> Floats:
        """Tokens a step, which is the accept length with the target's own token."""
        return self.per_step("tokens")

    @cached_property
    def predicted_us(self) -> Floats:
        """C(n, min(U, B)): a verification's price, foretold from steps of `none`."""
        return self.predicted["verify_us"] / self.predicted["steps"]

    @cached_property
    def kl(self) -> Floats:
        """Nats a token of given text."""
        return per_token(self.given, "kl")

    @cached_property
    def agreement(self) -> Floats:
        """Share of given tokens where the likeliest token is the unbudgeted one."""
        return per_token(self.given, "agrees")

    @cached_property
    def excess_loss(self) -> Floats:
        """Nats a token of given text, over the unbudgeted target's clean forward."""
        return per_token(self.given, "loss") - per_token(self.given, "plain_loss")

    def per_step(self, name: str) -> Floats:
        """A sum over decoded text as a mean over its steps."""
        return self.decoded[name] / self.decoded["steps"]


def per_token(sums: Sums, name: str) -> Floats:
    """A sum as a mean over the tokens committed."""
    return sums[name] / sums["tokens"]


class Drawer:
    """Draws of every setting of a recording, from the same resamples."""

    def __init__(self, recording: BudgetRecord, prices: Prices) -> None:
        """`prices` may be of a recording that this one is part of."""
        self.recording, self.prices = recording, prices
        self.resamples = Bootstrap(len(recording.prompts))

    def draws(self) -> tuple[Draws, ...]:
        """One a setting, in their order."""
        every = range(len(self.recording.settings))
        return tuple(self._draws(number) for number in every)

    def _draws(self, number: int) -> Draws:
        setting = self.recording.settings[number]
        decoded, unbudgeted = (
            self._steps(each, given=False) for each in (number, self.recording.none)
        )
        allowed = np.minimum(unbudgeted.union, setting.budget)
        verify_us = self.prices.verify_us(unbudgeted, allowed)
        return Draws(
            setting,
            self._sums(decoded, self._priced(decoded)),
            self._sums(self._steps(number, given=True), {}),
            self._sums(unbudgeted, {"verify_us": verify_us}),
        )

    def _steps(self, setting: int, given: bool) -> Steps:
        steps = self.recording.steps
        return steps.take((steps.setting == setting) & (steps.given == given))

    def _priced(self, steps: Steps) -> Sums:
        verify_us = self.prices.verify_us(steps, steps.union)
        return {
            "verify_us": verify_us,
            "us": self.prices.step_us(steps, verify_us),
            "union": steps.union,
        }

    def _sums(self, steps: Steps, more: Sums) -> Sums:
        """Columns summed by prompt, then over each resample's prompts."""
        columns = {
            "steps": np.ones(len(steps.prompt)),
            "tokens": steps.committed.astype(np.float64),
            "kl": steps.kl,
            "agrees": steps.agrees,
            "loss": steps.loss,
            "plain_loss": steps.plain_loss,
            **more,
        }
        prompts = len(self.recording.prompts)
        sums = [np.bincount(steps.prompt, c, prompts) for c in columns.values()]
        account = np.stack(sums, axis=1, dtype=np.float64)
        return dict(zip(columns, self.resamples.sums(account), strict=True))
