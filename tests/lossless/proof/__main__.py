"""Enumerate every combination anew, and write what `evict-profile audit` prints.

    python -m tests.lossless.proof

Two minutes. `git diff` then shows whether a verdict or a counterexample has changed.
"""

from evict_profile.io import write_json
from evict_profile.lossless.audit import COMBINATIONS, FOUND
from evict_profile.records import to_mapping
from tests.lossless.proof.audit import audit

if __name__ == "__main__":
    found = {}
    for each in map(audit, COMBINATIONS):
        if each.largest:
            examples = {"largest": each.largest, "readable": each.readable}
            found[str(each.combination)] = to_mapping(examples)
    write_json(found, FOUND)
