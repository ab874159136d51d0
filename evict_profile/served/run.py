"""One run of a server: its decode step, its accepted lengths, and what it stated.

A step decodes `batch` requests once. A plain step verifies one token of each request, a
drafting step `width` = 1 + K of a chain. Where a tool states tokens per second instead,
step = batch * accepted length / tokens per second (prefill left out).
"""

from collections.abc import Iterable

from msgspec import Struct

from evict_profile.errors import ConfigError
from evict_profile.records import Amount, Count, Facts, NotNegative, Positive

SPECULATION_FLAGS = (
    "speculative_algorithm", "disable_overlap_schedule", "max_running_requests"
)  # fmt: skip
"""Flags that a drafting engine sets itself."""

STEP_FLAGS = (
    "ep_size", "dp_size", "dtype", "quantization", "attention_backend",
    "moe_runner_backend"
)  # fmt: skip
"""SGLang's other flags that change a step."""

CHOSEN = (*SPECULATION_FLAGS, "attention_backend")
"""What may differ between plain decoding and drafts. On Hopper SGLang chooses another
attention for trees: a finding states it, because the speed-up contains it."""

LEAST_MS, MOST_MS = 0.1, 10e3
"""Bounds of a decode step; a step beyond them has another unit."""


class Deployment(Struct, frozen=True, kw_only=True):
    """What a run states of its server; "" or None where it states nothing.

    Attributes:
        dtype: format of the weights.
        flags: other facts that change a step, by the engine's own names.
    """

    model: str = ""
    gpu: str = ""
    engine: str = ""
    version: str = ""
    tp: Count | None = None
    dtype: str = ""
    host: str = ""
    flags: Facts = {}

    @property
    def stated(self) -> Facts:
        """The facts that are stated, by name."""
        own = {name: getattr(self, name) for name in self.__struct_fields__[:-1]}
        return {k: v for k, v in (own | self.flags).items() if v not in ("", None)}


def check_one_deployment(stated: Iterable[tuple[str, Deployment]]) -> None:
    """Refuse two values of a fact that engines do not set themselves to draft.

    `stated` has the source of each deployment.
    """
    known = dict[str, tuple[object, str]]()
    for source, deployment in stated:
        for name, fact in deployment.stated.items():
            first, other = known.setdefault(name, (fact, source))
            if first != fact and name not in CHOSEN:
                raise ConfigError(
                    f"{source}: is of another deployment than {other}: {name}: {first} "
                    f"first, {fact} then; only drafts may differ, so give each "
                    "deployment a file and a table of its own"
                )


class Load(Struct, frozen=True, kw_only=True):
    """What a run states of its requests; None where it states nothing.

    Attributes:
        requests, failed: counts of the whole run.
        at_once: requests that ran at once, in the mean.
        waiting: requests that waited at once, at most.
        kv_usage: largest share of the KV cache in use.
        prefill: share of a request's time before its first token.
        stalls: largest share of its steps' time that prompts of others may take.
        has_prefill: whether the step's time contains that share.
        drafted: tokens drafted a step and request.
        steps: steps of all requests of which accepted lengths are the means.
        equal_lengths: all requests have one input and one output length.
        graphs: why steps took longer than with whole CUDA graphs; "" if they had them.
    """

    temperature: NotNegative | None = None
    requests: Amount | None = None
    failed: Amount = 0
    at_once: Positive | None = None
    waiting: Amount | None = None
    kv_usage: NotNegative | None = None
    prefill: NotNegative | None = None
    has_prefill: bool = False
    stalls: NotNegative = 0.0
    drafted: NotNegative | None = None
    steps: Positive | None = None
    equal_lengths: bool = False
    graphs: str | None = None


PART = ", part "
"""Before the number of a part of a log, in its source."""


class Run(Struct, frozen=True, kw_only=True):
    """One run of a server at one batch size.

    Attributes:
        source: file and place, such as "runs.csv, line 3".
        batch: requests that decoded together.
        drafts: K; 0 is plain decoding.
        levels: drafted one after another; K of a chain.
        topk: branches of a drafted level; 1 drafts chains.
        width: tokens that each request verifies, the root included.
        step_us: a whole step, drafting and host included; None if not stated.
        accept_lengths: tokens that a step and request commits if only the first k
            drafts are verified, by k; {} if not stated.
        context: mean tokens in a request's KV cache; None if not stated.
        text: the prompts' name; "" if not stated.
    """

    source: str
    batch: Count
    drafts: Amount
    levels: Amount
    topk: Count
    width: Count
    step_us: Positive | None = None
    accept_lengths: dict[int, Positive] = {}
    context: NotNegative | None = None
    text: str = ""
    deployment: Deployment = Deployment()
    load: Load = Load()

    @property
    def start(self) -> str:
        """The start of a server that a part of a log is of; "" of other runs."""
        return self.source.rpartition(PART)[0]

    @property
    def accept_length(self) -> float | None:
        """Tokens a step and request commits; 1 of a plain run."""
        return self.accept_lengths.get(self.levels) if self.drafts else 1.0

    def checked(self) -> "Run":
        """The run itself; a `ConfigError` if its numbers cannot be."""
        if wrong := self._fault():
            raise ConfigError(f"{self.source}: {wrong}")
        return self

    def _fault(self) -> str:
        if (self.drafts > 0) != (self.width > 1) or (self.drafts > 0) != (
            self.levels > 0
        ):
            return "a plain run verifies 1 token, and one that drafts more; fix K"
        for drafts, length in self.accept_lengths.items():
            if 0.0 < length < 1.0:
                return (
                    f"an accepted length of {length:g} is a rate; give it as the "
                    "column acceptance, or 1 + K x rate as the accepted length"
                )
            if not 1.0 <= length <= drafts + 1 or drafts > self.levels:
                return (
                    f"a step that drafts {drafts} commits 1 to {drafts + 1} tokens, "
                    f"and {length:g} is stated; fix the accepted length, or K"
                )
        step_ms = (self.step_us or 1e3 * LEAST_MS) / 1e3
        if not LEAST_MS <= step_ms <= MOST_MS:
            return (
                f"a step of {step_ms:.3g} ms cannot be; give step ms in milliseconds, "
                "or tok/s of all requests together"
            )
        return ""
