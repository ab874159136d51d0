"""Documents of schema 3 are read."""

import json

from evict_profile.records import digest
from evict_profile.table import CostTable
from evict_profile.table.upgrade import NAMES, OLD_SCHEMA, VALUES

OLD = {new: old for old, new in {**NAMES, **VALUES}.items()}


def older(content):
    if isinstance(content, dict):
        return {OLD.get(key, key): older(value) for key, value in content.items()}
    if isinstance(content, list):
        return [older(value) for value in content]
    return OLD.get(content, content) if isinstance(content, str) else content


def saved_as_older(path, place):
    document = older(json.loads(path.read_text()))
    made = document["provenance"]
    del document["sha256"], made["origin"]
    made["precision"] = {"asked": 0.02}
    made["openings"]["odd_references"] = {"#2": 0.4}
    made["sweep"]["plan"] = "grid"
    document["fit"]["layers"][0]["us_per_unit_interval"] = [0.0, 1e6]
    document["schema"] = OLD_SCHEMA
    document["key"]["moe_backend"] = "torch.mm, woken experts"
    place.write_text(json.dumps({**document, "sha256": digest(document)}))
    return place


def test_a_table_of_schema_3_is_read_under_the_hash_of_its_file(saved_table, tmp_path):
    place = saved_as_older(saved_table, tmp_path / "older.json")
    found, table = CostTable.load(place), CostTable.load(saved_table)
    assert found.sha256 == json.loads(place.read_text())["sha256"] != table.sha256
    assert found.key.moe_backend == "torch.mm, activated experts"
    key = {**table.document["key"], "moe_backend": found.key.moe_backend}
    assert found.document == {**table.document, "key": key}
