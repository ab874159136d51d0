"""Steps that run no process: they leave their result, or fail as they are told to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runners import gpu_steps
from runners.gpu_calls import work
from runners.gpu_steps import REFUSAL, USER_ERROR, Command, Outcome, Place, Step

KIND = {"script": "scripted", "scale": "small"}


@dataclass
class Scripted:
    """Takes the place of processes, and of the clock that a call reads.

    Attributes:
        results: files that steps leave, where the note of their end is not enough.
        took_s: what each step is said to have taken.
        failing, refused: steps that fail, and whose table the gates refuse.
    """

    out: Path
    results: Mapping[str, str] = field(default_factory=dict)
    took_s: float = 1.0
    failing: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    commands: dict[str, Command] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    now_s: float = 0.0

    def run(self, name: str, command: Command, limit_s: float, place: Place) -> Outcome:
        """In the place of a process."""
        self.names.append(name)
        self.commands[name], self.limits[name] = command, limit_s
        self.now_s += self.took_s
        (place.logs / f"{name}.log").write_text("said")
        if name in self.failing:
            return Outcome(name, 1, self.took_s, "broke off")
        if name in self.refused:
            return Outcome(name, USER_ERROR, self.took_s, f"error: {REFUSAL} of drift")
        if name in self.results:
            made = self.out / self.results[name]
            made.parent.mkdir(parents=True, exist_ok=True)
            made.write_text(name)
        return Outcome(name, 0, self.took_s, None)

    def after(self, name: str, option: str) -> str:
        """The word behind an option of a step's command."""
        command = self.commands[name]
        return command[command.index(option) + 1]


def call(out: Path, plan: Sequence[Step], limit_s: float = 570.0) -> int:
    """One call of a script."""
    return work(out, KIND, plan, limit_s)


def without_processes(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """The same, put in place."""
    monkeypatch.setattr(gpu_steps, "run", scripted.run)
    monkeypatch.setattr(gpu_steps.time, "monotonic", lambda: scripted.now_s)
    return scripted
