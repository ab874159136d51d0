"""A fleet that cannot be is refused, with the field that is wrong."""

import pytest

from evict_profile.errors import ConfigError
from evict_profile.fleet.spec import Device


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"models": []}, "name each"),
        ({"shards": 0}, "shards: Expected"),
        ({"exclude": [{"gpu": "H100"}]}, "exclude names some of model, sweep"),
        ({"exclude": [{}]}, "exclude names some of"),
        ({"budget": {"tries": 0}}, "budget.tries: Expected"),
        ({"budget": {"device_minutes": 0.0}}, "budget.device_minutes: Expected"),
        ({"dtypes": ["int4"]}, "dtypes"),
        ({"devices": {"cpu": {"gpus": -1.0}}}, "gpus: Expected"),
        (
            {"devices": {"cpu": {"resources": {"machine": 0.0}}}},
            "resources.*: Expected",
        ),
        ({"device": {}}, "unknown key 'device'"),
    ],
)
def test_what_cannot_be_is_refused(fleet_of, wrong, says):
    with pytest.raises(ConfigError, match=f"fleet.yaml: .*{says}"):
        fleet_of(**wrong)


def test_the_estimate_takes_a_usual_bandwidth():
    """Where none is given."""
    assert Device().gbps < Device(gpus=1.0).gbps
    assert Device(bandwidth_gbps=7.0).gbps == 7.0
