"""What a log of SGLang or vLLM states: K, accepted lengths, and CUDA graphs.

vLLM logs the share of steps that accept each position, which gives the lengths of all
shorter K, and SGLang one length and whether a graph ran.
"""

import re
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evict_profile.stats import Floats

LAST = 100
"""How many of the last values count: those before are of a start, or of other load."""

RARE = 0.05
"""Share of steps without a graph that is left unsaid."""

_FACTS = {
    "drafts": re.compile(r"num_spec(?:ulative)?_tokens'?[=:] ?(\d+)"),
    "verified": re.compile(r"speculative_num_draft_tokens=(\d+)"),
    "topk": re.compile(r"speculative_eagle_topk=(\d+)"),
    "adaptive": re.compile(r"speculative_adaptive=(True)"),
    "eager": re.compile(r"(enforce_eager|disable_cuda_graph)=True"),
    "mode": re.compile(r"(?:cudagraph_mode=|<CUDAGraphMode\.)(PIECEWISE|NONE)\b"),
    "tokens": re.compile(r"max_cudagraph_capture_size': (\d+)"),
    "batches": re.compile(r"target verify CUDA graph begin.* bs=\[[\d, ]*?(\d+)\]"),
}
_RUNNING = re.compile(r"(?:#running-req|Running): (\d+)")
_GRAPH = re.compile(r"Decode batch.* cuda graph: (True|False)")
_LENGTH = re.compile(r"(?:accept len|Mean acceptance length): (\d+\.\d+)")
_SHARES = re.compile(r"Per-position acceptance rate: (\d[\d., ]*\d)")


@dataclass(frozen=True)
class ServerLog:
    """`lengths` are the last logged, [lines, K] of vLLM and [lines, 1] of SGLang, of
    `facts` as the engine's configuration names them. `graphs` counts logged steps by
    whether a graph ran, and `running` is the most requests at once."""

    name: str
    facts: dict[str, str]
    lengths: Floats
    graphs: Counter[str]
    running: int

    @property
    def drafts(self) -> int:
        """K of chains; 0 where the log names none."""
        if self.lengths.size > len(self.lengths):
            return int(self.lengths.shape[1])
        chains = self.facts.get("topk", "1") == "1" and "adaptive" not in self.facts
        verified = int(self.facts.get("verified", 1))
        return int(self.facts.get("drafts", verified - 1)) if chains else 0

    def slow_graphs(self) -> Iterator[str]:
        """Why steps take longer than with whole graphs, and the remedy."""
        facts, eager = self.facts, self.graphs["False"]
        if flag := facts.get("eager"):
            yield f"{flag} turns CUDA graphs off; start the server without it"
        elif mode := facts.get("mode"):
            yield (
                f"CUDA graphs fell to {mode} (vLLM #49548: from 59.6 to 50.0 tokens a "
                "second); choose an --attention-backend that captures drafts as a whole"
            )
        elif eager > RARE * self.graphs.total():
            yield (
                f"{eager} of {self.graphs.total()} logged steps ran without a CUDA "
                "graph; capture up to the largest batch with --cuda-graph-max-bs-decode"
            )
        tokens = self.running * (self.drafts + 1)
        largest = int(facts.get("batches", 0)) * (self.drafts + 1)
        captured = int(facts.get("tokens", largest))
        if 0 < captured < tokens:
            yield (
                f"{self.running} requests at once verify {tokens} tokens, and CUDA "
                f"graphs end at {captured}; capture larger ones"
            )


def read_log(path: Path) -> ServerLog | None:
    """The facts in a log; None of a file that has none."""
    facts, running = dict[str, str](), 0
    lengths, graphs = deque[Floats](maxlen=LAST), Counter[str]()
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            found = {name: sign.search(line) for name, sign in _FACTS.items()}
            facts |= {name: match[1] for name, match in found.items() if match}
            running = max([running, *map(int, _RUNNING.findall(line))])
            graphs.update(_GRAPH.findall(line))
            if shares := _SHARES.search(line):
                lengths.append(1.0 + np.cumsum([*map(float, shares[1].split(","))]))
            elif length := _LENGTH.search(line):
                lengths.append(np.array([float(length[1])]))
    same = [each for each in lengths if len(each) == len(lengths[-1])]
    if not (facts or same or graphs):
        return None
    return ServerLog(path.name, facts, np.array(same), graphs, running)
