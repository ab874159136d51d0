"""What a fleet's page says of the tables that it has."""

import pytest

from evict_profile.records import replace
from evict_profile.report.fleet import ratios
from evict_profile.table import CostTable


def test_ratios_are_over_one_token_where_the_smallest_width_is_two(saved_table):
    table = CostTable.load(saved_table)
    wide = replace(table, axes=replace(table.axes, width=(2, 4, 8, 16)))
    cost_us = table.price(1, 64).step_cost_us
    assert ratios(wide, [2, 99]) == [pytest.approx(cost_us[2] / cost_us[1]), None]
