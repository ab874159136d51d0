"""Which time of a wave counts, by replies whose tokens came at known times."""

import asyncio
from contextlib import nullcontext
from itertools import cycle, islice

import numpy as np
import pytest

from evict_profile.served.probe import wave as module
from evict_profile.served.probe.wave import RequestForm, StreamedReply, decode

STEP_S = 0.01


class Quiet:
    """A server that counts nothing itself."""

    url, answering, after = "http://a", staticmethod(nullcontext), ()

    async def metrics(self):
        return self.after.pop() if self.after else {}


def reply(begin_s, committed, steps=60):
    """A first token, then so many tokens a step by turns."""
    made = StreamedReply()
    tokens = np.cumsum([1, *islice(cycle(committed), steps)])
    for number, count in enumerate(tokens.tolist()):
        usage = {"prompt_tokens": 36, "completion_tokens": count}
        message = {"choices": [{"text": "word"}], "usage": usage}
        made.add(message, begin_s + STEP_S * number)
    made.steps = steps
    return made


def found(monkeypatch, *replies):
    left = list(replies)

    async def planted(*_):
        return left.pop()

    monkeypatch.setattr(module, "_reply", planted)
    form = RequestForm("vllm", "m", raw=True)
    return asyncio.run(decode(Quiet(), form, [""] * len(left)))


def test_a_step_is_batch_times_accepted_over_the_rate(monkeypatch):
    """Neither a late first token nor the time after the first end is in it."""
    replies = (reply(at, [1, 2, 3]) for at in (0.0, 0.09, 0.03))
    result = found(monkeypatch, *replies)
    assert result.accepted == pytest.approx(2.0)
    assert 3 * result.accepted / result.tokens_per_s == pytest.approx(STEP_S, rel=0.01)
    assert result.context == 36 + module.REPLY_TOKENS / 2


@pytest.mark.parametrize("late", [reply(0.57, [1]), reply(0.0, [], 0)])
def test_replies_that_hardly_overlap_have_no_rate(monkeypatch, late):
    assert found(monkeypatch, reply(0.0, [1]), late).tokens_per_s == 0.0


def test_steps_that_draft_nothing_count(monkeypatch):
    """vLLM's counters are of steps that drafted: 20 of the 60 here."""
    one = reply(0.0, [3, 1, 1], 60)
    one.steps, names = 0, (module.DRAFTS, module.ACCEPTED, module.DRAFTED)
    counted = dict(zip(names, (20.0, 40.0, 60.0), strict=True))
    monkeypatch.setattr(Quiet, "after", [counted, {}])
    result = found(monkeypatch, one)
    assert (result.accepted, result.drafted) == (pytest.approx(100 / 60), 1.0)


def test_messages_that_count_nothing_share_the_tokens():
    made = StreamedReply()
    for number in range(4):
        made.add({"choices": [{"delta": {"content": "ab"}}]}, float(number))
    made.add({"choices": [], "usage": {"completion_tokens": 10}}, 4.0)
    assert made.tokens == [1.0, 4.0, 7.0, 10.0]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("counts", [True, False])
def test_thoughts_are_tokens(name, counts):
    """vLLM names them otherwise than SGLang."""
    made = StreamedReply()
    for number in range(1, 4):
        usage = {"completion_tokens": number} if counts else None
        made.add({"choices": [{"delta": {name: "ab"}}], "usage": usage}, float(number))
    assert (made.at_s, made.tokens) == ([1.0, 2.0, 3.0], [1, 2, 3])


def test_tokens_without_text_count():
    """As vLLM sends a special token; what ends a reply adds none."""
    made, texts = StreamedReply(), ["a", "", "b", "", ""]
    for number, (text, count) in enumerate(zip(texts, [1, 2, 4, 5, 5], strict=True)):
        usage = {"completion_tokens": count}
        made.add({"choices": [{"text": text}], "usage": usage}, float(number))
    made.add({"choices": [], "usage": usage}, 9.0)
    assert (made.at_s, made.tokens) == ([0.0, 1.0, 2.0, 3.0], [1, 2, 4, 5])


def test_llama_server_counts_in_its_timings():
    """The first token of 11 is the prompt's; 6 of the others were drafted."""
    made = reply(0.0, [1], 3)
    timings = {"predicted_n": 11, "draft_n": 9, "draft_n_accepted": 6}
    made.add({"choices": [{"text": ""}], "timings": timings}, 1.0)
    assert made.steps == 4
