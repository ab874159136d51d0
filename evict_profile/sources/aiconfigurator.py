"""Measured kernel latencies in NVIDIA's `aiconfigurator-core`, and its successor.

`aisimulate` goes on where `aiconfigurator-core` ends (both Apache-2.0, PyPI). A wheel
holds one Parquet file for each GPU, family, engine and version. No code of it runs.
Other releases and unknown columns are refused: they may change what a row means.
"""

import fnmatch
import hashlib
import zipfile
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from packaging.version import Version

from evict_profile.errors import ConfigError
from evict_profile.io import regular

if TYPE_CHECKING:
    import pandas as pd

PACKAGE, VERSION = "aiconfigurator-core", "0.12.0"
RELEASES = {PACKAGE: VERSION, "aisimulate": "0.13.0"}
"""What is read; candidates and development builds of a release count as it."""

LICENCE = "Apache-2.0"
ATTRIBUTION = (
    "NVIDIA CORPORATION & AFFILIATES, AIConfigurator "
    "(https://github.com/ai-dynamo/aiconfigurator)"
)
GET = f"get it with: pip download --no-deps {PACKAGE}=={VERSION}"

DEV = "dev-"
"""Begins the version of rows between releases of their engine, which are not read."""

COMMON = ("framework", "version", "device", "op_name", "kernel_source", "latency")
UNUSED = ("power", "power_limit", "sample_count")
ELIGIBLE = "default_eligible"
"""False on rows that the package itself leaves out."""


class MissingSource(ConfigError): ...


class Operation(NamedTuple):
    family: str
    file: str
    columns: str
    optional: str = ""


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
    "mla module": Operation(
        "mla",
        "mla_generation_module_perf",
        "model architecture mla_dtype kv_cache_dtype gemm_type num_heads batch_size "
        "isl tp_size step",
    ),
    "mla bmm": Operation("mla_bmm", "mla_bmm_perf", "bmm_dtype num_tokens num_heads"),
    "all-reduce": Operation(
        "comm",
        "custom_allreduce_perf",
        "allreduce_dtype num_gpus message_size",
        "backend implementation",
    ),
}


@dataclass(frozen=True, eq=False)
class Source:
    """The rows of one wheel; by file, `read` has SHA-256, `ineligible` bad rows."""

    root: Path | zipfile.Path
    package: str
    version: str
    ineligible: dict[str, int] = field(default_factory=dict)
    read: dict[str, str] = field(default_factory=dict)
    _rows: dict[str, "pd.DataFrame"] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        return f"{self.package} {self.version}"

    @cached_property
    def files(self) -> dict[tuple[str, str, str, str], str]:
        kinds = {(kind.family, kind.file) for kind in OPERATIONS.values()}
        files = {}
        for name in self._names():
            gpu, family, engine, version, file = name.split("/")[-5:]
            kind = file.removesuffix(".parquet")
            if (family, kind) in kinds and not version.startswith(DEV):
                files[gpu, kind, engine, version] = name
        return files

    def engines(self, gpu: str, operation: str) -> list[tuple[str, str]]:
        """(engine, release) pairs with rows of an operation, the newest last."""
        file = OPERATIONS[operation].file
        pairs = [(k[2], k[3]) for k in self.files if k[:2] == (gpu, file)]
        return sorted(pairs, key=lambda pair: (pair[0], Version(pair[1])))

    def version_for(self, gpu: str, operation: str, engine: str, version: str) -> str:
        """This version, else the newest older one, else the oldest."""
        if (gpu, OPERATIONS[operation].file, engine, version) in self.files:
            return version
        versions = [v for name, v in self.engines(gpu, operation) if name == engine]
        if not versions:
            raise ConfigError(
                f"{engine} on {gpu}: {self.name} has no rows of {operation}; "
                "choose another engine: evict-profile estimate"
            )
        before = [v for v in versions if Version(v) <= Version(version)]
        return before[-1] if before else versions[0]

    def rows(
        self, gpu: str, operation: str, engine: str, version: str
    ) -> "pd.DataFrame":
        """The rows of one file, with `us`; some keys are measured repeatedly."""
        kind = OPERATIONS[operation]
        path = self.files[gpu, kind.file, engine, version]
        if path not in self._rows:
            rows = self._checked(path, kind)
            self._rows[path] = rows.assign(us=1e3 * rows["latency"])
        return self._rows[path]

    def _checked(self, path: str, kind: Operation) -> "pd.DataFrame":
        import pandas as pd

        try:
            rows = pd.read_parquet(BytesIO(self._bytes(path)))
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"{path}: is damaged ({reason}); {GET}, and give that"
            ) from error
        needed = {*COMMON, *kind.columns.split()}
        columns_read = needed.union(UNUSED, kind.optional.split(), [ELIGIBLE])
        columns = set(rows.columns)
        if needed - columns or columns - columns_read:
            missing, unknown = sorted(needed - columns), sorted(columns - columns_read)
            what = f"lacks {missing}" if missing else f"has {unknown}"
            raise ConfigError(
                f"{path}: {what}, so its rows may mean something else than in "
                f"{PACKAGE} {VERSION}; {GET}, and give that"
            )
        if ELIGIBLE in rows:
            self.ineligible[path] = int((~rows[ELIGIBLE]).sum())
            rows = rows[rows[ELIGIBLE]].reset_index(drop=True)
        return rows

    def _names(self) -> list[str]:
        pattern = f"{systems_of(self.package)}/data/*/*/*/*/*.parquet"
        if isinstance(self.root, Path):
            paths = self.root.glob(pattern)
            return sorted(path.relative_to(self.root).as_posix() for path in paths)
        return fnmatch.filter(self.root.root.namelist(), pattern)

    def _bytes(self, path: str) -> bytes:
        content = (self.root / path).read_bytes()
        self.read[path] = hashlib.sha256(content).hexdigest()
        return content


def systems_of(package: str) -> str:
    return f"{package.removesuffix('-core')}_core/systems"


def open_source(place: Path | None = None) -> Source:
    """The wheel, the folder it was unpacked to, or what pip installed."""
    root = _installed() if place is None else _opened(place)
    for package, version in RELEASES.items():
        start = f"{package.replace('-', '_')}-"
        versions = [
            entry.name.removeprefix(start).removesuffix(".dist-info")
            for entry in root.iterdir()
            if entry.name.startswith(start) and entry.name.endswith(".dist-info")
        ]
        if not versions or not (root / systems_of(package) / "data").is_dir():
            continue
        if Version(versions[0]).base_version != version:
            raise ConfigError(
                f"{root}: is {package} {versions[0]}, and rows are understood as of "
                f"{version}; {GET}, and give the file"
            )
        return Source(root, package, versions[0])
    raise ConfigError(
        f"{root}: holds no {' and no '.join(RELEASES)} (a folder with its rows and "
        f"its .dist-info); {GET}, and give the file"
    )


def _installed() -> Path:
    for package in RELEASES:
        with suppress(PackageNotFoundError):
            return Path(str(distribution(package).locate_file("")))
    raise MissingSource(
        f"{PACKAGE} is not installed; in a checkout: pip install '.[public]', or "
        f"give its wheel or folder with --from"
    )


def _opened(place: Path) -> Path | zipfile.Path:
    try:
        return place if place.is_dir() else zipfile.Path(regular(place))
    except (OSError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"{place}: is no wheel ({error}); {GET}, and give the file"
        ) from error
