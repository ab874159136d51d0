"""Results of benchmarks as JSON: of vLLM, of SGLang, and what its server says in one.

The time of a token (TPOT) leaves prefill out, so it is taken before the throughput,
which has prefill in it. `sglang.bench_one_batch` times a plain step itself.
"""

from pathlib import Path

from evict_profile.errors import ConfigError
from evict_profile.records import Facts
from evict_profile.served.probe.record import near
from evict_profile.served.readers import facts
from evict_profile.served.readers.facts import FileRuns
from evict_profile.served.run import STEP_FLAGS, Deployment, Load, Run

EQUAL = 8
"""Requests from which equal mean lengths are no chance."""

LENGTHS = ("accept_length", "spec_decode_acceptance_length", "acc_length")
POSITIONS = "spec_decode_per_position_acceptance_rates"
ENGINES = ("sglang", "vllm", "trtllm")
STEP_S, TOKEN_MS = "median_decode_latency", ("median_tpot_ms", "mean_tpot_ms")


def read(path: Path, text: str, given: int | None) -> FileRuns:
    found = enumerate(facts.documents(text, path), 1)
    return FileRuns([run_of(each, path, n, given) for n, each in found])


def run_of(found: Facts, path: Path, number: int, given: int | None) -> Run:
    """The run of one result, by the names of its JSON."""
    source = f"{path}, run {number}"
    stated, lengths, batch = _drafts(found), _lengths(found), _batch(found, source)
    known: Facts = {"context": _context(found), "load": _load(found)}
    drafts = facts.drafts_of(path, stated.get("drafts"), given)
    if isinstance(lengths, float):
        plain = not drafts and lengths == 1.0
        lengths = {} if plain else {stated.get("levels", drafts): lengths}
    known |= stated | {"batch": batch, "drafts": drafts, "accept_lengths": lengths}
    known["text"] = str(found.get("dataset_name") or "")
    known["deployment"] = _deployment(found)
    return facts.timed(source, *_times_us(found, batch, source), **known)


def _server(found: Facts) -> Facts:
    """SGLang's own words; with prefill apart, those of the first that decodes."""
    info = found.get("server_info") or {}
    return info["decode"][0] if "decode" in info else info


def _drafts(found: Facts) -> Facts:
    """K and the tree of its drafts, as far as they are stated."""
    info = _server(found)
    is_off = "speculative_algorithm" in info and not info["speculative_algorithm"]
    if is_off or found.get(STEP_S):
        return {"drafts": 0}
    if width := info.get("speculative_num_draft_tokens"):
        levels = info.get("speculative_num_steps") or width - 1
        topk = info.get("speculative_eagle_topk") or 1
        drafts = levels if topk > 1 else width - 1
        return {"drafts": drafts, "levels": levels, "topk": topk, "width": width}
    if shares := found.get(POSITIONS):
        return {"drafts": len(shares)}
    drafted = _drafted(found)
    return (
        {"drafts": round(drafted)} if drafted and near(drafted, round(drafted)) else {}
    )


def _drafted(found: Facts) -> float | None:
    steps = found.get("spec_decode_num_drafts")
    return found["spec_decode_draft_tokens"] / steps if steps else None


def _lengths(found: Facts) -> dict[int, float] | float:
    """Accepted lengths by k, or the only one, or none."""
    if shares := found.get(POSITIONS):
        scale = 100.0 if max(shares) > 1.0 else 1.0
        return facts.lengths_of(share / scale for share in shares)
    stated = [float(found[name]) for name in LENGTHS if (found.get(name) or 0.0) > 0.0]
    return stated[0] if stated else {}


def _deployment(found: Facts) -> Deployment:
    """`backend` is the protocol that the client speaks; it names some engines."""
    info, backend = _server(found), str(found.get("backend") or "")
    engine = next((each for each in ENGINES if backend.startswith(each)), "")
    counted = "vllm" if "spec_decode_num_drafts" in found else ""
    return Deployment(
        model=str(found.get("model_id") or info.get("model_path") or ""),
        engine="sglang" if info else engine or counted,
        version=str(info.get("version") or ""),
        tp=info.get("tp_size"),
        flags={name: info[name] for name in STEP_FLAGS if info.get(name) is not None},
    )


def _batch(found: Facts, source: str) -> int:
    for name in ("max_concurrency", "batch_size", "max_concurrent_requests"):
        if found.get(name):
            return round(float(found[name]))
    if "max_concurrency" not in found:
        raise ConfigError(
            f"{source}: is no result of a serving benchmark: neither max_concurrency "
            "nor batch_size is in it; give the file that --save-result or "
            "--output-file wrote"
        )
    raise ConfigError(
        f"{source}: requests came at a rate ({found.get('request_rate')} a second), so "
        "how many ran at once is not stated; run it with --max-concurrency"
    )


def _times_us(
    found: Facts, batch: int, source: str
) -> tuple[float | None, float | None]:
    """Microseconds between two tokens of a request, and of a step."""
    if step_s := found.get(STEP_S):
        return None, 1e6 * step_s
    for name in TOKEN_MS:
        if (token_ms := found.get(name) or 0.0) > 0.0:
            return 1e3 * token_ms, None
    if rate := found.get("output_throughput"):
        return 1e6 * batch / rate, None
    raise ConfigError(
        f"{source}: states no time of a token and no throughput; save the result again"
    )


def _context(found: Facts) -> float | None:
    """Mean tokens in a request's cache: the input, and half of the output."""
    done, tokens = found.get("completed"), found.get("total_input_tokens")
    if done and tokens is not None:
        return float((tokens + (found.get("total_output_tokens") or 0) / 2) / done)
    asked = found.get("input_len")
    return float(asked + (found.get("output_len") or 0) / 2) if asked else None


def _load(found: Facts) -> Load:
    timed = (STEP_S, *TOKEN_MS, "last_ttft")
    known: Facts = {
        "requests": found.get("completed"),
        "failed": found.get("failed") or 0,
        "drafted": _drafted(found),
        "temperature": found.get("temperature"),
        "at_once": found.get("concurrency") or None,
        "has_prefill": not any(found.get(name) for name in timed),
    }
    if not (done := found.get("completed")):
        return Load(**known)
    tokens = [found.get(f"total_{kind}_tokens") or 0 for kind in ("input", "output")]
    equal = done >= EQUAL and all(each and each % done == 0 for each in tokens)
    first_ms, token_ms = (found.get(f"mean_{kind}_ms") for kind in ("ttft", "tpot"))
    if first_ms and token_ms:
        request_ms = first_ms + token_ms * max(tokens[1] / done - 1.0, 0.0)
        known["prefill"] = first_ms / request_ms
        if not known["at_once"] and (duration_s := found.get("duration")):
            known["at_once"] = done * request_ms / 1e3 / duration_s
    return Load(**known, equal_lengths=equal)
