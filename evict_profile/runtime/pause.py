"""Whether to draft at all in the coming step.

A truncator cannot undo a draft. Where text is hard or drafting dear, plain decoding is
faster than the best cut of a drafted tree; but a step that drafts nothing learns
nothing. So what drafted steps lately promised for their time is compared with the
price of a plain step. While it is less, steps are skipped, and now and then one is
drafted to look: after 1, 2, 4 and at last every 32 skipped steps. What was known fades
in skipped steps as well, so that one look after a long pause decides.

Only past steps are read, so that this is lossless however drafts are made.
"""

from dataclasses import dataclass

HALF_LIFE_STEPS = 8.0
LONGEST_PAUSE_STEPS = 32


@dataclass
class Pause:
    """Fading sums over drafted steps, and how long drafting has paused.

    Attributes:
        tokens_each: tokens that a request was expected to gain, summed.
        us: time of those steps.
        skipped: steps since one was drafted.
        patience: steps to skip before the next look.
    """

    tokens_each: float = 0.0
    us: float = 0.0
    skipped: int = 0
    patience: int = 1

    def observe(self, tokens_each: float, us: float, drafted: bool) -> None:
        """Add a step; one that drafted nothing only lets the others fade."""
        fade = 0.5 ** (1.0 / HALF_LIFE_STEPS)
        self.tokens_each *= fade
        self.us *= fade
        if drafted:
            self.tokens_each += tokens_each
            self.us += us

    def skips(self, plain_us: float) -> bool:
        """Whether the coming step drafts nothing; ask once a step.

        Args:
            plain_us: price of a step of plain decoding.
        """
        if self.tokens_each * plain_us >= self.us:
            self.skipped, self.patience = 0, 1
            return False
        if self.skipped >= self.patience:
            self.skipped = 0
            self.patience = min(2 * self.patience, LONGEST_PAUSE_STEPS)
            return False
        self.skipped += 1
        return True
