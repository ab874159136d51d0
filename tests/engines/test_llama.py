"""llama-server over HTTP: probed, made a table of, advised, and started again."""

from pathlib import Path

import pytest
import yaml

from evict_profile.served.probe.record import read_probe
from tests.engines import servers

pytestmark = servers.needs("xllamacpp")

K, RATE = 3, 0.7
"""A server of one slot accepts its k-th draft with 0.7 to the power of k: 2.533."""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    from examples.small_world.export_gguf import write_world

    path = tmp_path_factory.mktemp("gguf") / "world.gguf"
    write_world(Path("examples/small_world/stdlib"), path, 0, 0, "F32")
    return str(path)


def serving(world, drafts):
    from tests.served.probe.llama_servers import Setting, started

    return started([Setting(world, *((world, drafts, RATE) if drafts else ()))])


@pytest.fixture(scope="module")
def table(world, tmp_path_factory):
    """A table of plain decoding and of K = 3; beside it is what was probed."""
    from examples.llama_cpp.model_file import gguf_mapping

    folder = tmp_path_factory.mktemp("llama")
    for drafts in (0, K):
        with serving(world, drafts) as [url]:
            servers.probe(folder, url)
    shape = folder / "model.yaml"
    shape.write_text(yaml.safe_dump(gguf_mapping(Path(world))))
    return folder, servers.make_table(folder, shape)


def test_a_probe_finds_k_and_the_accepted_length(table):
    folder, _ = table
    (none, plain), (three, waves) = read_probe(folder / servers.FOUND)
    assert (none.server.engine, none.server.drafts) == ("llama.cpp", 0)
    assert (three.server.drafts, three.server.levels) == (K, K)
    assert servers.accepted(plain) == 1.0
    assert servers.accepted(waves) == pytest.approx(2.533, rel=0.25)


def test_the_printed_command_starts_the_server_that_was_advised(table, world):
    """Its K is what the next probe of it finds. The library reads no command line."""
    folder, path = table
    words, fields = servers.advised(
        folder, path, "llama-cpp", "--drafter", "draft_model"
    )
    assert words[:3] == ["llama-server", "-m", "MODEL"]
    flags = dict(zip(words[3::2], words[4::2], strict=True))
    drafts = int(flags.pop("--spec-draft-n-max"))
    assert flags == {"-md": "DRAFTER", "--spec-type": "draft-simple"}
    assert drafts == fields["n_max"]
    with serving(world, drafts) as [url]:
        *_, (found, _) = servers.probe(folder, url)
    assert found.server.drafts == drafts
