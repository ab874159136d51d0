"""Fixtures that tests of several modules share."""

import os
import shutil
import signal

import pytest
from hypothesis import HealthCheck, settings

from evict_profile.fit.export import export_workload, make_table, with_workload
from evict_profile.fit.fitted import fit_run
from evict_profile.io import data_root
from evict_profile.sources import compose
from evict_profile.table import CostTable
from evict_profile.table.document import file_sha256
from tests.command import evict
from tests.factories import ACCEPTANCE, ACTIVATION, DRAFTING, write_run
from tests.shipped import tracked
from tests.sources.wheel import write_wheel

# Kernels run without a GPU in Triton's interpreter. Triton looks when it is imported,
# which whatever test comes first may do, so it is said before any test is read.
os.environ.setdefault("TRITON_INTERPRET", "1")

# What a user has set for a server is no input of a test.
for name in [name for name in os.environ if name.startswith("EVICT_PROFILE_")]:
    del os.environ[name]

# A parent such as `nohup make test &` has Ctrl-C ignored, which processes inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A first call may load a library, and other tests run beside this one; how long it
# takes is no property of the code.
settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def fitted(tmp_path_factory):
    return fit_run(write_run(tmp_path_factory.mktemp("known")))


@pytest.fixture(scope="session")
def made_table(fitted, tmp_path_factory):
    """The files of `saved_table`, made once."""
    path = tmp_path_factory.mktemp("made") / "1.0.0.json"
    samples = path.with_suffix(".parquet")
    fitted.frame.to_parquet(samples, index=False)
    make_table(fitted, file_sha256(samples)).save(path)
    return path


@pytest.fixture
def saved_table(made_table, tmp_path):
    """A table and its samples, which a test may change."""
    for file in (made_table, made_table.with_suffix(".parquet")):
        shutil.copy(file, tmp_path)
    return tmp_path / made_table.name


@pytest.fixture
def workload_table(saved_table):
    """The next version of `saved_table`, with what a drafter brings in it."""
    table = with_workload(CostTable.load(saved_table), ACCEPTANCE, ACTIVATION, DRAFTING)
    return export_workload(table, saved_table)[1]


@pytest.fixture(scope="session")
def shipped_root(tmp_path_factory):
    """A folder that holds `cost_tables/` with the tables that are shipped alone."""
    root = tmp_path_factory.mktemp("shipped")
    for file in tracked("cost_tables/*"):
        link = root / file.relative_to(data_root())
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)
    return root


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    return write_wheel(tmp_path_factory.mktemp("public") / "wheel")


@pytest.fixture(scope="session")
def composed_path(wheel, tmp_path_factory):
    """A table that the command composed of them on a small grid, its page beside it."""
    folder = tmp_path_factory.mktemp("composed")
    words = ("--model", "qwen3-30b-a3b", "--gpu", "h200", "--engine", "sglang")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compose, "WIDTHS", (1, 4, 16, 64))
        patch.setattr(compose, "BATCHES", (1, 4))
        patch.setattr(compose, "UNIONS", 5)
        done = evict("estimate", *words, "--from", wheel, folder=folder)
    assert done.exit_code == 0, done.output
    assert "composed from public rows, not measured" in done.stdout
    read, _, rest = done.stderr.partition("\n")
    assert read.startswith("qwen3-30b-a3b: 128 experts, top 8, ")
    assert rest == "estimating: about 5 s\n"
    [table] = folder.rglob("1.0.0.json")
    return table
