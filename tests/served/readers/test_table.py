"""A CSV is read with the columns and the numbers that people write."""

import pytest

from evict_profile.errors import ConfigError
from tests.served.readers.reading import reading_of, runs_of, sample

PAIR = [(2, 0, 20_000.0), (2, 3, 40_000.0)]


def steps(runs):
    return [(run.batch, run.drafts, pytest.approx(run.step_us)) for run in runs]


def test_a_csv_states_its_settings():
    plain, chain, tree = sample("plain.csv")
    assert plain.step_us == pytest.approx(8e6 / 1367)
    assert (chain.width, chain.levels, chain.topk, chain.context) == (4, 3, 1, 2000)
    assert (chain.step_us, chain.accept_lengths) == (10_000, {3: 2.5})
    assert (tree.width, tree.levels, tree.topk, tree.step_us) == (6, 5, 3, 12_000)
    assert plain.context is None


@pytest.mark.parametrize(
    "text",
    [
        "batch,K,tok/s,accepted\n2,0,100,\n2,3,150,3.0\n",
        "concurrency, k, tokens/s, accept_length\n2,0,100,\n2,3,150,3.0\n",
        "Batch Size;Drafts;tok/s;Accepted\n2;0;100;\n2;3;150;3,0\n",
        "batch\tK\ttok/s\taccepted\n2\t0\t100\t\n2\t3\t150\t3,0\n",
        "\ufeffbatch,K,tok/s,accepted\r\n2,0,100,NaN\r\n2,3,150,3.0\r\n",
        "batch,K,step ms\n2,0,20 ms\n2,3,40000 us\n",
        "batch,K,step_us\n2,0,20000\n2,3,40000\n",
        "batch,K,tok/s,acceptance\n2,0,100 tok/s,\n2,3,150 tok/s,66.66666667%\n",
        "batch,K,TPOT (ms),al\n2,0,20,\n2,3,13.3333333333,3\n",
        '# mine\nbatch,K,tok/s,accepted\n"2",0,"100",\n2,3,150,3.0\n,,,\n',
    ],
    ids=[
        *("plain", "names", "semicolons", "tabs", "windows", "units", "unit of column"),
        *("rate", "tpot", "comments"),
    ],
)
def test_the_same_runs_in_other_words(tmp_path, text):
    assert steps(runs_of(tmp_path, text)) == PAIR


def test_thousands_and_decimal_marks(tmp_path):
    [run] = runs_of(tmp_path, 'batch,K,tok/s\n8,0,"1,367"\n')
    assert run.step_us == pytest.approx(8e6 / 1367)
    [run] = runs_of(tmp_path, "batch;K;tok/s\n8;0;1.367,5\n")
    assert run.step_us == pytest.approx(8e6 / 1367.5)
    with pytest.raises(ConfigError, match="1,367 may be a decimal number or thousands"):
        runs_of(tmp_path, "batch;K;tok/s\n8;0;1,367\n")


def test_names_that_are_numbers_are_text(tmp_path):
    text = (
        "batch,K,step ms,gpu,version,model,engine,tp,prompts\n1,0,8,4090,0.33,7,x,2,5\n"
    )
    [run] = runs_of(tmp_path, text)
    known = run.deployment
    assert (known.gpu, known.version, known.model, known.tp) == ("4090", "0.33", "7", 2)
    assert run.text == "5"


def test_other_columns_are_kept_out_with_a_word(tmp_path):
    found = reading_of(tmp_path, "batch,K,step ms,notes,TTFT ms\n1,0,8,new,3\n")
    assert steps(found.runs) == [(1, 0, 8000.0)]
    assert found.notes == [
        f"{tmp_path}/runs: column {name} was not read" for name in ("notes", "TTFT ms")
    ]


@pytest.mark.parametrize(
    ("column", "advice"),
    [
        ("accpted", "rename it to accepted"),
        ("ms per token", "it is no step; rename it to TPOT ms"),
        ("tok/s per request", "multiply it by the batch"),
    ],
)
def test_a_column_that_looks_like_one_is_told_its_name(tmp_path, column, advice):
    """Of runs that are read as a note, and of those refused with the reason."""
    found = reading_of(tmp_path, f"batch,K,step ms,{column}\n1,0,8,3\n")
    [note] = found.notes
    assert f"column {column} was not read; {advice}" in note
    with pytest.raises(ConfigError, match=f"no time of a step.*; {advice}"):
        runs_of(tmp_path, f"batch,K,{column}\n1,0,8\n")


def test_names_of_llama_cpps_logs_are_read(tmp_path):
    [run] = runs_of(tmp_path, "batch,draft_max,step ms,mean len\n1,3,8,2.5\n")
    assert (run.drafts, run.accept_length) == (3, 2.5)
    [run] = runs_of(tmp_path, "batch,K,step ms,acc_len\n1,3,8,2.5\n")
    assert run.accept_length == 2.5
    [run] = runs_of(tmp_path, "batch,K,step ms,acc rate\n1,3,8,0.5\n")
    assert run.accept_length == 2.5


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("step ms,tok/s,accepted\n1,3,13.3,150,3\n", "is 13.3, and tok/s of 150 makes"),
        ("step ms,TPOT ms,accepted\n1,3,13.3,3,3\n", "TPOT ms of 3 makes it 9"),
        ("step ms,tok/s\n1,0,10,110\n", "tok/s of 110 makes it 9.09"),
        (
            "step ms,accepted,acceptance\n1,3,10,2.01,67%\n",
            "accepted is 2.01, and acceptance of 0.67 makes it 3.01",
        ),
    ],
)
def test_columns_that_contradict_each_other_are_refused_with_both(tmp_path, text, says):
    with pytest.raises(ConfigError, match=says):
        runs_of(tmp_path, f"batch,K,{text}")


def test_a_step_is_taken_before_throughput(tmp_path):
    """Throughput has prefill in it; a step has not."""
    [run] = runs_of(tmp_path, "batch,K,step ms,tok/s\n8,0,10,770\n")
    assert run.step_us == 10_000


def test_k_may_be_typed_for_a_csv_without_it(tmp_path):
    [run] = runs_of(tmp_path, "batch,step ms\n8,10\n", drafts=3)
    assert run.drafts == 3


def test_a_plain_row_may_state_that_nothing_is_accepted(tmp_path):
    [run] = runs_of(tmp_path, "batch,K,step ms,accepted\n8,0,10,0\n")
    assert run.accept_length == 1.0


def test_acceptance_alone_is_a_run_without_a_step(tmp_path):
    [run] = runs_of(tmp_path, "batch,K,accepted\n8,3,2.5\n")
    assert (run.step_us, run.accept_length) == (None, 2.5)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("batch,tok/s\n1,3\n", "has no column K among batch, tok/s"),
        ("K,tok/s\n1,3\n", "has no column batch among K, tok/s"),
        ("batch,K,tok/s\n8,0,1e300\n", "a step of 8e-297 ms cannot be"),
        ("batch,K,tok/s\n8,0,1e999\n", "tok/s must be a number of at least 0"),
        ("batch,K,step ms\n8,0,16e4\n", "a step of 1.6e.05 ms cannot be"),
        ("batch,K,step ms\n8,0,0.016\n", "a step of 0.016 ms cannot be"),
        ("batch,K,tok/s\n8,3,10\n", "only with the accepted length"),
        ("batch,K,tok/s\n8,0,NaN\n", "states no time of a step"),
        ("batch,K,step ms,accepted\n8,3,10,5\n", "commits 1 to 4 tokens"),
        ("batch,K,step ms,accepted\n8,0,10,2\n", "commits 1 to 1 tokens"),
        ("batch,K,step ms,accepted\n8,3,10,0.62\n", "0.62 is a rate; .* acceptance"),
        ("batch,K,step ms,accepted\n8,3,10,0\n", "accepted must be at least 1"),
        ("batch,K,step ms,acceptance\n8,3,10,2.62\n", "acceptance must be a rate"),
        ("batch,K,step ms\n8,0,fast\n", "step ms must be a number in ms.*is fast"),
        ("batch,K,step ms\n8,0,1.2.3\n", "step ms must be a number"),
        ("batch,K,step ms\n8,0,5 min\n", "step ms must be a number in ms.*is 5 min"),
        ("batch,K,step ms\n8,0,-1\n", "step ms must be a number of at least 0"),
        ("batch,K,step ms\n8,2.5,1\n", "K must be a whole number from 0"),
        ("Batch,K,step ms\n0,2,1\n", "Batch must be a whole number from 1"),
        ("batch,K,verified,step ms\n8,0,4,5\n", "a plain run verifies 1 token"),
        ("batch,K,tok/s\n8,0,1,367\n", "4 cells under 3 columns; put numbers"),
        (
            "# a note\nbatch,K,tok/s\n\n8,0,9\n8,,9\n",
            "line 5: column K is empty; fill it in .K is 0 for plain decoding",
        ),
        ("batch,K,tok/s\n,0,9\n", "line 2: column batch is empty; fill it in"),
        ("batch,K,tok/s\n8\n", "line 2: column K is empty"),
        (
            "Our runs\nbatch,K,tok/s\n8,0,9\n",
            "line 2 names the columns of a CSV.* begin those with #",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence_with_the_users_names(tmp_path, text, says):
    with pytest.raises(ConfigError, match=says) as caught:
        runs_of(tmp_path, text)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path}/runs") and "\n" not in said
    assert "_" not in said.removeprefix(f"{tmp_path}/runs")
