"""The sentence of a table states the break-even that its steps have."""

from evict_profile.advice.advise import Advisor
from evict_profile.advice.answer import stated_ways
from evict_profile.advice.lengths import of_lengths
from evict_profile.report.numbers import spread
from evict_profile.report.pays import how_to_decide, pays
from evict_profile.served.step import ServedStep
from evict_profile.table import CostTable


def covered(served, batch):
    return served.covers(batch, 4, min(served.table.axes.context))


def test_it_states_the_ratio_of_the_smallest_and_the_largest_batch(workload_table):
    table = CostTable.load(workload_table)
    served, context = ServedStep.of(table), min(table.axes.context)
    batches = [b for b in sorted(table.axes.batch) if covered(served, b)]
    for batch in (batches[0], batches[-1]):
        assert f"at batch {batch}" in pays(table)
        assert spread(served.ratio(batch, 4, 3, context)) in pays(table)
    assert "assumed" not in pays(table)


def test_drafting_that_is_assumed_is_said_to_be(saved_table):
    assert "The time of drafting is assumed" in pays(CostTable.load(saved_table))


def test_an_estimate_states_the_break_even_of_advice(composed_path):
    table = CostTable.load(composed_path)
    [way] = stated_ways(Advisor.of(table, of_lengths({3: 2.4}, "")), 1)
    assert f"more than {spread(way.break_even)}" in pays(table)
    assert "not measured" in pays(table)


def test_the_command_names_the_table_by_its_key(saved_table):
    key = CostTable.load(saved_table).key
    command = how_to_decide(CostTable.load(saved_table))
    assert command.startswith(f"evict-profile advise --model {key.model} --gpu ")
    sizes = f" --tp {key.tp} --dtype {key.dtype}"
    assert command.endswith(f"{sizes} --accept 3:LENGTH")
