"""Files of configs/, broken in one place."""

import pytest
import yaml

from evict_profile.config import load_model, load_sweep
from evict_profile.config.gpu import load_gpu
from evict_profile.errors import ConfigError
from evict_profile.io import named_file

LOADERS = {"models": load_model, "gpus": load_gpu, "sweeps": load_sweep}
EXAMPLES = {"models": "ling-flash-2.0", "gpus": "h200-sxm", "sweeps": "sglang"}


def names(kind):
    folder = named_file(kind, EXAMPLES[kind]).parent
    return sorted(path.stem for path in folder.glob("*.yaml"))


def example(kind):
    return dict(yaml.safe_load(named_file(kind, EXAMPLES[kind]).read_text()))


def failure(kind, folder, content):
    """The message that loading `content` ends with; one line that names the file."""
    path = folder / "broken.yaml"
    path.write_text(yaml.safe_dump(dict(content)))
    with pytest.raises(ConfigError) as caught:
        LOADERS[kind](str(path))
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message
