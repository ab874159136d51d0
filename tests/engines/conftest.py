"""Models that servers load, and the servers that a file's `ENGINE` starts of them."""

import pytest

from tests.engines import servers
from tests.engines.checkpoint import write_models


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


@pytest.fixture(scope="module")
def engine(request):
    return request.module.ENGINE


@pytest.fixture(scope="module")
def folder(tmp_path_factory, engine):
    return tmp_path_factory.mktemp(engine.name)


@pytest.fixture(scope="module")
def plain(engine, models, folder):
    with engine.serving(engine.plain(models), folder / "plain.log") as url:
        yield url


@pytest.fixture(scope="module")
def table(engine, models, folder, plain):
    """A table of plain decoding and of K = 3."""
    engine.probe(folder, plain)
    with engine.serving(engine.drafting(models), folder / "drafting.log") as url:
        engine.probe(folder, url)
    return servers.make_table(folder, models / "target/config.json")
