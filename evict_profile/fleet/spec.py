"""What a fleet is to measure: models x sweeps x dtypes x runners x devices.

A device type says what a node must offer, in Ray's own words, so that who places the
work is Ray. On a CPU it is by default the whole machine: two sweeps side by side share
its memory bandwidth, which is what both would measure.
"""

from pathlib import Path
from typing import Literal

from msgspec import Struct, field

from evict_profile.records import Count, NotNegative, Positive, parse, read_mapping

Dtype = Literal["auto", "bfloat16", "float32"]
AXES = ("model", "sweep", "dtype", "runner", "device")

MACHINE = "machine"
"""The resource of which a node offers 1, for whoever needs it to itself."""

ENVIRONMENT_SHARE = 0.001
"""Of the resource that stands for an engine's environment, which many tasks may use."""


class EngineEnvironment(Struct, frozen=True):
    """A runner and the environment that it runs in.

    Attributes:
        runner: its name, or the path of its script.
        python: interpreter of the engine's environment, as nodes see it; "" for the
            toolkit's own.
        env: variables of the engine.
        whole: it times whole forwards; see `SweepSpec`.
        resource: that a node with this environment offers; "" where all have it.
    """

    runner: str
    python: str = ""
    env: dict[str, str] = field(default_factory=dict)
    whole: bool = False
    resource: str = ""


class Device(Struct, frozen=True):
    """A kind of device, and what of a node one sweep on it takes.

    Attributes:
        gpus: 0 measures the CPU.
        accelerator: Ray's name of the GPU, such as "H100"; "" for any.
        resources: of the node's own; on a CPU the whole machine by default.
        bandwidth_gbps: of its memory, roughly; only the estimate of cost needs it.
    """

    cpus: NotNegative = 1.0
    gpus: NotNegative = 0.0
    accelerator: str = ""
    resources: dict[str, Positive] | None = None
    bandwidth_gbps: NotNegative = 0.0

    @property
    def gbps(self) -> float:
        """Bandwidth that the estimate takes."""
        return self.bandwidth_gbps or (2000.0 if self.gpus else 10.0)


class Budget(Struct, frozen=True):
    """What one run of the fleet may spend on a shard; may be changed between runs.

    Attributes:
        tries: of each shard, the first one included.
        device_minutes: of each shard, over all its tries.
        silence_minutes: a sweep that says nothing for so long hangs.
        node_silence_minutes: a node that says nothing for so long is lost.
        wait_minutes: how long a node is waited for that no cluster offers.
    """

    tries: Count = 3
    device_minutes: Positive = 240.0
    silence_minutes: Positive = 15.0
    node_silence_minutes: Positive = 2.0
    wait_minutes: NotNegative = 5.0


class FleetSpec(Struct, frozen=True):
    """A fleet as its YAML says it.

    Attributes:
        models, sweeps: names or paths, as `profile` takes them.
        exclude: pairs to leave out, each by the axes that it names.
        shards: machines that share each pair.
    """

    name: str
    models: tuple[str, ...]
    sweeps: tuple[str, ...]
    runners: dict[str, EngineEnvironment]
    devices: dict[str, Device]
    dtypes: tuple[Dtype, ...] = ("auto",)
    exclude: tuple[dict[str, str], ...] = ()
    shards: Count = 1
    budget: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        axes = (self.models, self.sweeps, self.runners, self.devices, self.dtypes)
        if not all(axes):
            raise ValueError("models, sweeps, runners, devices and dtypes: name each")
        for rule in self.exclude:
            if not rule or not rule.keys() <= set(AXES):
                raise ValueError(f"exclude names some of {', '.join(AXES)}: {rule}")


def load_fleet(path: Path) -> FleetSpec:
    """Read a fleet."""
    return parse(FleetSpec, read_mapping(path), str(path))
