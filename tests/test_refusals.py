"""Every refusal of the command line is one sentence, and changes no file."""

import os
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from evict_profile.fit.export import make_table
from evict_profile.served.probe.record import Probed, Wave, append, resume
from evict_profile.served.probe.server import ServerInfo
from evict_profile.table.document import file_sha256
from tests.command import refused
from tests.factories import write_run
from tests.traces.synthetic import TINY, Plan, write_trace

ROWS = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text())
COMPOSED = "composed/nvidia-h200/qwen3-30b-a3b/sglang-0.5.14-bfloat16-tp1-ep1"
SWEEP = {
    "name": "short",
    "runner": "roofline",
    "grid": {"width": [1, 2, 4, 8, 16, 32], "union": 5, "context": [64], "batch": [1]},
}
SERVER = ServerInfo("http://a", "vllm", "1", "deepseek-ai/DeepSeek-V3", 0, 0, 1, {})


@pytest.fixture(scope="module")
def place(tmp_path_factory, fitted, wheel, shipped_root):
    """The folder in which the rows are run, and what their variables stand for."""
    place = tmp_path_factory.mktemp("refusals")
    table, samples = place / "tree/1.0.0.json", place / "tree/1.0.0.parquet"
    for folder in (
        *("empty", "tree", "headless/parts"),
        *("folder.json", "folder.jsonl"),
    ):
        (place / folder).mkdir(parents=True)
    fitted.frame.to_parquet(samples, index=False)
    make_table(fitted, file_sha256(samples)).save(table)
    (place / "notes.md").write_text("# Notes\n**bold**\n")
    (place / "samples.parquet").write_text("PAR1")
    (place / "runs.csv").write_text("batch,drafts,accept_length,tokens_per_s\n8,0,,1\n")
    (place / "header.csv").write_text("batch,drafts,accept_length,tokens_per_s\n")
    for suffix in ("", ".json", ".jsonl", ".yaml", ".parquet"):
        os.mkfifo(place / f"pipe{suffix}")
    for file in ("file", "llama.gguf", "headless/parts/00001-00.parquet"):
        (place / file).touch()
    write_run(place / "run")
    shutil.copytree(place / "run", place / "damaged")
    part = place / "damaged/parts/00001-00.parquet"
    part.write_bytes(part.read_bytes()[:100])
    union = {"grid": {**SWEEP["grid"], "union": [3]}}
    runners = (("runner", {"runner": "nothing"}), ("llama", {"runner": "llama_cpp"}))
    engines = (
        ("former", {"sglang": {"steps": 3}}),
        ("mistyped", {"engine": {"gpus": "h200-sxm"}}),
        ("unread", {"engine": {"steps": 3}, "runner": "torch_moe"}),
    )
    for name, changes in (("union", union), *runners, *engines):
        (place / f"{name}.yaml").write_text(yaml.safe_dump({**SWEEP, **changes}))
    for name in ("server", "probe"):
        resume(place / f"{name}.jsonl", Probed(SERVER, "chat"))
    append(place / "probe.jsonl", Wave(1, 1, 100.0, 2.5, 512.0, 0, 0.0, 1.0))
    write_trace(place / "trace.parquet", Plan(prompts=4, tokens=10, about=TINY))
    shipped = shipped_root / "cost_tables" / COMPOSED / "1.0.0.json"
    variables = {"$TABLE": table, "$SAMPLES": samples, "$H200": shipped}
    return place, variables | {"$WHEEL": wheel}


def files_of(place):
    return {p: p.stat().st_mtime_ns for p in place.rglob("*") if p.is_file()}


@pytest.mark.parametrize(("command", "says"), ROWS.items(), ids=list(ROWS))
def test_a_refusal_is_one_sentence(command, says, place, shipped_root, monkeypatch):
    folder, variables = place
    monkeypatch.setenv("EVICT_PROFILE_TABLES", str(shipped_root / "cost_tables"))
    before = files_of(folder)
    words = (variables.get(word, word) for word in shlex.split(command))
    said = refused(*words, folder=folder)
    for part in says.split(" ... "):
        assert part in said
    assert files_of(folder) == before
