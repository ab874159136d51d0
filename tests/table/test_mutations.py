"""A table that was changed and signed again is read right, or refused by its field.

Read right means: every cost that the table gives is finite, positive and within its
interval's order, at the measured places and between them, and nothing but a
`DataError` is ever raised. 1,000 changes are tried: wrong types, missing and added
keys, infinities, negative and huge numbers, shuffled, cut and emptied lists.
"""

import json
import random
from itertools import islice

import numpy as np
import pytest

from evict_profile.errors import DataError
from evict_profile.table import CostTable
from evict_profile.table.document import as_text

WRONG = (None, True, "", "7", -1, 0, 0.5, 10**12, 10**400, -1e300, 1e300)
WRONG += (*map(float, ("inf", "-inf", "nan")), [], {}, [[]], {"a": 1})


def places(content, where=()):
    """The keys to each value of a document; of long lists of numbers a few."""
    if isinstance(content, dict):
        keys = list(content)
    elif isinstance(content, list):
        flat = not any(isinstance(each, dict | list) for each in content)
        keys = list(range(min(len(content), 3) if flat else len(content)))
    else:
        return
    for key in keys:
        yield (*where, key)
        yield from places(content[key], (*where, key))


def scaled(value, rng):
    """A number that is of the right kind and wrong."""
    if type(value) not in (int, float):
        return value
    return value * rng.choice((-1, 0, 2, 1000)) + rng.choice((0, 1))


def reordered(value, rng):
    """A list in another order, cut short, or longer by its last."""
    if not isinstance(value, list) or not value:
        return value
    shuffled = rng.sample(value, len(value))
    return rng.choice((shuffled, value[: len(value) // 2], [*value, value[-1]]))


def mutate(container, key, rng):
    match rng.randrange(7):
        case 0:
            del container[key]
        case 1:
            container[key] = scaled(container[key], rng)
        case 2 | 3:
            container[key] = reordered(container[key], rng)
        case 4 if isinstance(container, dict):
            container["colour"] = "red"
        case _:
            container[key] = rng.choice(WRONG)


def mutants(table, rng):
    """Copies of a table with one change each, anywhere.

    Of its staircases two, which differ in batch and context: more are of the same kind,
    and each is evaluated for each copy.
    """
    document = CostTable.load(table).document
    document["staircases"] = (document["staircases"][0], document["staircases"][-1])
    text = json.dumps(document)
    whole = list(places(json.loads(text)))
    while True:
        container = json.loads(text)
        changed, (*where, key) = container, rng.choice(whole)
        for step in where:
            container = container[step]
        mutate(container, key, rng)
        yield changed


def costs_are_sound(table):
    """At measured places, between them, within a budget, and beside verification."""
    low, high = table.fit.domain["batch"]
    asked = []
    for stairs in table.staircases:
        least, most = table.contexts(stairs.batch)
        if low <= stairs.batch <= high and least <= stairs.context <= most:
            asked.append((stairs.batch, stairs.context))
    asked += [(batch, sum(table.contexts(batch)) / 2) for batch in {low, high}]
    for covered in (table, table.within_budget(table.model.moe.top_k)):
        for batch, context in asked:
            cost = covered.costs(batch, context)
            values = np.concatenate(cost[:3])
            if not (np.all(np.isfinite(values)) and np.all(values > 0.0)):
                return False
            if np.any(cost.low_us > cost.high_us):
                return False
    if not np.isfinite([table.noise, *table.watch_bounds]).all():
        return False
    clocks = table.drafting.batches if table.drafting else ()
    overheads = [clock.beside_us(d) for clock in clocks for d in range(9)]
    return bool(np.all(np.isfinite(overheads)) and min(overheads, default=0.0) >= 0.0)


@pytest.mark.parametrize(
    ("name", "count"), [("workload_table", 850), ("composed_path", 150)]
)
def test_changed_tables_are_read_right_or_refused(name, count, request):
    """No other error, and no cost that cannot be; each refusal names the source."""
    tried = islice(mutants(request.getfixturevalue(name), random.Random(15)), count)
    refused, wrong = 0, []
    for number, changed in enumerate(tried):
        try:
            sound = costs_are_sound(CostTable.of(changed, "a table"))
        except DataError as error:
            refused += 1
            sound = str(error).startswith("a table: ")
        except Exception as error:  # the property is that there is none
            wrong.append((number, repr(error)))
            continue
        if not sound:
            wrong.append((number, "unsound"))
    assert wrong == []
    assert refused > 0.45 * count


def test_signed_again_on_disk_they_are_no_other(workload_table, tmp_path):
    """The file adds a hash to the document, and takes nothing from what is refused."""
    path = tmp_path / "1.0.0.json"
    for changed in islice(mutants(workload_table, random.Random(3)), 200):
        path.write_text(as_text(changed), encoding="utf-8")
        try:
            assert costs_are_sound(CostTable.load(path))
        except DataError as error:
            assert str(path) in str(error)
