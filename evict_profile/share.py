"""Parts of a whole, named by a user as i/n."""

from evict_profile.errors import ConfigError


def parse_share(option: str, text: str) -> tuple[int, int]:
    """The part asked for, from 0, and how many there are.

    Raises:
        ConfigError: not of the form i/n with 1 <= i <= n.
    """
    try:
        index, count = (int(part) for part in text.split("/"))
    except ValueError:
        index, count = 0, 0
    if not 1 <= index <= count:
        raise ConfigError(f"{option} {text}: must be i/n with 1 <= i <= n, such as 2/4")
    return index - 1, count
