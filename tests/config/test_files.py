"""What is true of every file of configs/: it loads, and a mistake in it is named."""

import pytest

from evict_profile.errors import ConfigError
from tests.config.files import LOADERS, example, failure, names

EACH_KIND = pytest.mark.parametrize("kind", LOADERS)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in LOADERS for name in names(kind)]
)
def test_a_file_loads_under_the_name_it_states(kind, name):
    assert LOADERS[kind](name).name == name


@EACH_KIND
def test_an_unknown_key_is_named(kind, tmp_path):
    message = failure(kind, tmp_path, example(kind) | {"hiden_size": 4096})
    assert "unknown key 'hiden_size'; remove it, or write " in message


@EACH_KIND
def test_a_missing_key_is_named(kind, tmp_path):
    content = example(kind)
    del content["name"]
    assert "key 'name' is missing; add it" in failure(kind, tmp_path, content)


@EACH_KIND
def test_an_unknown_name_is_answered_with_the_known_ones(kind):
    with pytest.raises(ConfigError) as caught:
        LOADERS[kind]("zzzzzzzz")
    assert all(name in str(caught.value) for name in names(kind))
