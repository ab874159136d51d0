"""TensorRT-LLM's own validator and look-up, on the schedule that is exported for it.

Its wheel is gigabytes, and two functions are enough: with `TENSORRT_LLM_SOURCE` naming
a checkout, or a folder that holds the files, they are taken from its sources and run.
"""

import ast
import os
from bisect import bisect_left, bisect_right
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.exported import shipped_table, write_schedule

B300 = "nvidia-b300-sxm6-ac/gpt-oss-120b/trtllm-1.3.0rc20-w4a8-mxfp4-mxfp8-tp1-ep1"
CHECKOUT = os.environ.get("TENSORRT_LLM_SOURCE")
pytestmark = pytest.mark.skipif(
    not CHECKOUT, reason="TENSORRT_LLM_SOURCE names no checkout of TensorRT-LLM"
)


def function(name, taking):
    """A function of the checkout by its name and one of its parameters."""
    for path in sorted(Path(CHECKOUT or "").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if f"def {name}(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.name == name:
                if taking not in [each.arg for each in node.args.args]:
                    continue
                node.decorator_list = []
                names: dict[str, Any] = {
                    "bisect_left": bisect_left,
                    "bisect_right": bisect_right,
                    "Dict": dict,
                }
                code = compile(ast.Module([node], []), str(path), "exec")
                exec(code, names)
                return names[name]  # type: ignore[no-any-return]
    raise AssertionError(f"{CHECKOUT} has no {name}({taking})")


def test_every_batch_drafts_what_was_chosen(tmp_path):
    """After the config's own validation; nothing beyond what was priced."""
    path = tmp_path / "schedule.yaml"
    written = write_schedule(shipped_table(B300), "trtllm", path, 5, 2, 4)
    config = written.content["speculative_config"]
    most, given = config["max_draft_len"], config["draft_len_schedule"]
    validate = function("validate_draft_len_schedule_and_sort", "v")
    taken = validate(None, given, SimpleNamespace(data={"max_draft_len": most}))
    assert taken == given
    read = function("get_draft_len_for_batch_size", "draft_len_schedule")
    for batch, drafts in (written.chosen | {13: 0}).items():
        assert read(taken, batch, most) == drafts
