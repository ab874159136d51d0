"""Measured kernel latencies in NVIDIA's `aiconfigurator-core` (Apache-2.0, PyPI).

The wheel holds one Parquet file for each GPU, family, engine and version. No code of it
runs. Other releases and unknown columns are refused: they may change what a row means.
"""

import fnmatch
import hashlib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import yaml
from packaging.version import Version

from evict_profile.errors import ConfigError
from evict_profile.io import nearest, regular

if TYPE_CHECKING:
    import pandas as pd

PACKAGE, VERSION = "aiconfigurator-core", "0.12.0"
LICENCE = "Apache-2.0"
ATTRIBUTION = (
    "NVIDIA CORPORATION & AFFILIATES, AIConfigurator "
    "(https://github.com/ai-dynamo/aiconfigurator)"
)
SYSTEMS = "aiconfigurator_core/systems"
GET = f"get it with: pip download --no-deps {PACKAGE}=={VERSION}"

COMMON = frozenset(
    ("framework", "version", "device", "op_name", "kernel_source", "latency")
)
UNUSED = frozenset(("power", "power_limit"))


class MissingSource(ConfigError):
    """The package is not installed, and no wheel was given."""


class Operation(NamedTuple):
    """Family, file and columns of one kind of rows."""

    family: str
    file: str
    columns: str
    optional: str = ""


MODULE = (
    "model architecture mla_dtype kv_cache_dtype gemm_type num_heads batch_size isl "
    "tp_size step"
)
STATE = (
    "phase batch_size seq_len num_tokens d_model d_conv num_k_heads head_k_dim "
    "num_v_heads head_v_dim model_name"
)

OPERATIONS = {
    "moe": Operation(
        "moe",
        "moe_perf",
        "moe_dtype num_tokens hidden_size inter_size topk num_experts moe_tp_size "
        "moe_ep_size distribution",
    ),
    "gemm": Operation("gemm", "gemm_perf", "gemm_dtype m n k"),
    "attention": Operation(
        "attention",
        "generation_attention_perf",
        "batch_size isl num_heads num_key_value_heads head_dim beam_width attn_dtype "
        "kv_cache_dtype step",
        "window_size",
    ),
    "mla": Operation(
        "mla",
        "generation_mla_perf",
        "mla_dtype kv_cache_dtype num_heads batch_size isl tp_size step",
    ),
    "mla module": Operation("mla", "mla_generation_module_perf", MODULE),
    "dsa module": Operation("sparse_attention", "dsa_generation_module_perf", MODULE),
    "msa module": Operation("msa", "msa_generation_module_perf", MODULE),
    "csa module": Operation(
        "sparse_attention", "dsv4_csa_generation_module_perf", MODULE, "compress_ratio"
    ),
    "hca module": Operation(
        "sparse_attention", "dsv4_hca_generation_module_perf", MODULE, "compress_ratio"
    ),
    "gdn": Operation("linear_attention", "gdn_perf", STATE),
    "kda": Operation("kda", "kda_perf", STATE),
    "hyper-connections": Operation(
        "mhc",
        "mhc_module_perf",
        "architecture num_tokens num_sites hc_mult hidden_size sinkhorn_iters",
    ),
    "mla bmm": Operation("mla_bmm", "mla_bmm_perf", "bmm_dtype num_tokens num_heads"),
    "all-reduce": Operation(
        "comm",
        "custom_allreduce_perf",
        "allreduce_dtype num_gpus message_size",
        "backend implementation",
    ),
}


class Gpu(NamedTuple):
    """From the data sheet, and the latency of an elementwise kernel."""

    bandwidth_gbps: float
    memory_gb: float
    launch_us: float


@dataclass(frozen=True, eq=False)
class Source:
    """The rows of one wheel; `read` holds each file's SHA-256."""

    root: Path | zipfile.Path
    read: dict[str, str] = field(default_factory=dict)
    _rows: dict[str, "pd.DataFrame"] = field(default_factory=dict, repr=False)
    _gpus: dict[str, Gpu] = field(default_factory=dict, repr=False)

    @cached_property
    def files(self) -> dict[tuple[str, str, str, str], str]:
        """Path of each file by (GPU, file, engine, version)."""
        known = {(kind.family, kind.file) for kind in OPERATIONS.values()}
        found = {}
        for name in self._names():
            gpu, family, engine, version, file = name.split("/")[-5:]
            kind = file.removesuffix(".parquet")
            if (family, kind) in known:
                found[gpu, kind, engine, version] = name
        return found

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """GPUs with rows of MoE layers."""
        return tuple(sorted({k[0] for k in self.files if k[1] == "moe_perf"}))

    def gpu(self, asked: str) -> str:
        return gpu_named(asked, self.gpus)

    def facts(self, gpu: str) -> Gpu:
        if gpu not in self._gpus:
            stated = yaml.safe_load(self._bytes(f"{SYSTEMS}/{gpu}.yaml"))["gpu"]
            self._gpus[gpu] = Gpu(
                bandwidth_gbps=float(stated["mem_bw"]) / 1e9,
                memory_gb=float(stated["mem_capacity"]) / 1e9,
                launch_us=1e6 * float(stated["mem_empirical_constant_latency"]),
            )
        return self._gpus[gpu]

    def engines(self, gpu: str, operation: str) -> tuple[tuple[str, str], ...]:
        """(engine, version) pairs with rows of an operation, the newest last."""
        file = OPERATIONS[operation].file
        found = [(k[2], k[3]) for k in self.files if k[:2] == (gpu, file)]
        return tuple(sorted(found, key=lambda pair: (pair[0], Version(pair[1]))))

    def version_for(self, gpu: str, operation: str, engine: str, version: str) -> str:
        """This version, else the newest older one, else the oldest."""
        own = [v for name, v in self.engines(gpu, operation) if name == engine]
        if not own:
            raise ConfigError(
                f"{engine} on {gpu}: {PACKAGE} {VERSION} has no rows of {operation}; "
                "choose another engine: evict-profile compose --list"
            )
        before = [v for v in own if Version(v) <= Version(version)]
        return before[-1] if before else own[0]

    def rows(
        self, gpu: str, operation: str, engine: str, version: str
    ) -> "pd.DataFrame":
        """The rows of one file, with `us`; some keys are measured repeatedly."""
        kind = OPERATIONS[operation]
        path = self.files[gpu, kind.file, engine, version]
        if path not in self._rows:
            self._rows[path] = self._checked(path, kind)
        return self._rows[path]

    def _checked(self, path: str, kind: Operation) -> "pd.DataFrame":
        import pandas as pd

        content = self._bytes(path)
        try:
            rows = pd.read_parquet(BytesIO(content))
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"{path}: is damaged ({reason}); {GET}, and give that"
            ) from error
        needed = COMMON.union(kind.columns.split())
        missing = needed - set(rows.columns)
        unknown = set(rows.columns) - needed - UNUSED.union(kind.optional.split())
        if missing or unknown:
            what = f"lacks {sorted(missing)}" if missing else f"has {sorted(unknown)}"
            raise ConfigError(
                f"{path}: {what}, so its rows may mean something else than in "
                f"{PACKAGE} {VERSION}; {GET}, and give that"
            )
        return rows.assign(us=1e3 * rows["latency"])

    def _names(self) -> list[str]:
        pattern = f"{SYSTEMS}/data/*/*/*/*/*.parquet"
        if isinstance(self.root, Path):
            found = self.root.glob(pattern)
            return sorted(path.relative_to(self.root).as_posix() for path in found)
        return fnmatch.filter(self.root.root.namelist(), pattern)

    def _bytes(self, path: str) -> bytes:
        content = (self.root / path).read_bytes()
        self.read[path] = hashlib.sha256(content).hexdigest()
        return content


def open_source(place: Path | None = None) -> Source:
    """The wheel, the folder it was unpacked to, or what pip installed."""
    root = _root(place)
    start = f"{PACKAGE.replace('-', '_')}-"
    found = [
        entry.name.removeprefix(start).removesuffix(".dist-info")
        for entry in root.iterdir()
        if entry.name.startswith(start) and entry.name.endswith(".dist-info")
    ]
    if not found or not (root / SYSTEMS / "data").is_dir():
        raise ConfigError(
            f"{root}: holds no {PACKAGE} (a folder {start[:-1]}/ and its .dist-info); "
            f"{GET}, and give the file"
        )
    if found[0] != VERSION:
        raise ConfigError(
            f"{root}: is {PACKAGE} {found[0]}, and rows are understood as of "
            f"{VERSION}; {GET}, and give the file"
        )
    return Source(root)


def _root(place: Path | None) -> Path | zipfile.Path:
    try:
        if place is None:
            return Path(str(distribution(PACKAGE).locate_file("")))
        return place if place.is_dir() else zipfile.Path(regular(place))
    except PackageNotFoundError as error:
        raise MissingSource(
            f"{PACKAGE} is not installed; in a checkout: pip install '.[public]', or "
            f"give its wheel or folder with --from"
        ) from error
    except (OSError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"{place}: is no wheel ({error}); {GET}, and give the file"
        ) from error


def gpu_named(asked: str, gpus: Sequence[str]) -> str:
    """Resolve a prefix: "h200" is "h200_sxm"."""
    wanted = asked.lower().replace("-", "_")
    found = [name for name in gpus if f"{name}_".startswith(f"{wanted}_")]
    if wanted in found or len(found) == 1:
        return wanted if wanted in found else found[0]
    raise ConfigError(
        f"--gpu {asked}: {PACKAGE} {VERSION} has rows of {', '.join(gpus)}"
        f"{nearest(wanted, gpus)}; name one of them"
    )
