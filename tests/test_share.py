"""Parts named as i/n."""

import pytest

from evict_profile.errors import ConfigError
from evict_profile.share import parse_share


def test_parts_count_from_one_for_the_user() -> None:
    assert parse_share("--part", "2/4") == (1, 4)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/2/3", "", "-1/2"])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--part .*: must be i/n"):
        parse_share("--part", text)
