"""What deciding takes: measured time that no other price of a step holds.

`evict-profile bench` times every policy through whole steps: each level, each question,
the plan and what is learnt. The clocks of drafting hold the decisions of a fixed width
already, since they time whole steps of one; so a step of another policy is charged for
what its decisions take beyond that.
"""

import math
from pathlib import Path

import msgspec
from msgspec import Struct

from evict_profile.errors import ConfigError
from evict_profile.replay.policies import (
    BEST_PAIR,
    PAIR_CONDITIONAL,
    Fixed,
    Policy,
)

SCHEMA = "evict-bench/3"


class DecisionTime(Struct, frozen=True):
    """Host time of one policy's decisions in a step of a batch; median and 95 %."""

    policy: str
    batch: int
    us: float
    low_us: float
    high_us: float


class _Bench(Struct, tag_field="schema", tag=SCHEMA):
    decision_us: tuple[DecisionTime, ...]


class DecisionTimes(Struct, frozen=True):
    """What a bench measured; without times deciding is free."""

    times: tuple[DecisionTime, ...] = ()

    @classmethod
    def load(cls, path: Path) -> "DecisionTimes":
        """Those that `evict-profile bench` wrote.

        Raises:
            ConfigError: the file cannot be read, or holds none.
        """
        try:
            bench = msgspec.json.decode(path.read_bytes(), type=_Bench)
            return cls(bench.decision_us)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(
                f"{path} holds no times of decisions ({reason}); write them with: "
                "evict-profile bench --only decision"
            ) from error

    def beyond_fixed_us(self, policy: Policy, batch: int) -> float:
        """What a step of a policy is charged, at the batch nearest in ratio."""
        name = policy.name
        if isinstance(policy, Fixed):
            name = PAIR_CONDITIONAL if policy.conditional else BEST_PAIR
            if not policy.depth:
                return 0.0
        own, fixed = (self._us(each, batch) for each in (name, BEST_PAIR))
        return max(own - fixed, 0.0)

    def _us(self, policy: str, batch: int) -> float:
        known = [each for each in self.times if each.policy == policy]
        if not known:
            return 0.0
        return min(known, key=lambda each: abs(math.log(each.batch / batch))).us
