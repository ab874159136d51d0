"""The long-run rate, estimated online: what a microsecond of verification must earn.

Throughput is E[tokens] / E[time] over many steps. By renewal reward the policy that
maximises it keeps a node while its acceptance pays rate * marginal cost, where rate is
that throughput itself. So the rate is estimated as decayed tokens over decayed time of
past steps. It depends on the past alone: no draft of this step is in it.

Both are counted against plain decoding, one token a request at the table's price. Their
quotient is then the speed-up, and moves little when the context changes under it.
"""

from dataclasses import dataclass

HALF_LIFE_STEPS = 32.0
"""Long enough that noise in accepted tokens costs under 0.1 %, since throughput is
flat around the best rate; short enough to follow a workload within a hundred steps."""

WARM_STEPS = 2.0
"""Weight, in steps, of the start: the table's own rate of plain decoding."""


@dataclass
class SpeedUp:
    """Tokens committed over those that plain decoding would have in the same time."""

    tokens: float = WARM_STEPS
    plain_tokens: float = WARM_STEPS

    def observe(self, tokens: float, plain_tokens: float) -> None:
        """Add a step, and let older ones fade."""
        fade = 0.5 ** (1.0 / HALF_LIFE_STEPS)
        self.tokens = fade * self.tokens + tokens
        self.plain_tokens = fade * self.plain_tokens + plain_tokens

    @property
    def value(self) -> float:
        """The speed-up over plain decoding."""
        return self.tokens / self.plain_tokens
