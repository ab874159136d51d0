"""What the environment says, and each mistake in one sentence."""

from pathlib import Path

import pytest

from evict_profile.errors import ConfigError
from evict_profile.integrations.sglang.settings import Settings, from_environment

TABLE = {"EVICT_PROFILE_TABLE": "t.json"}
OBSERVE = {"EVICT_PROFILE_MODE": "observe", "EVICT_PROFILE_TRACES": "seen"}


def test_nothing_is_off() -> None:
    assert from_environment({}) == Settings()
    assert Settings().mode == "off"


def test_empty_variables_are_unset() -> None:
    names = ("TABLE", "MODE", "TRACES", "EXPERT_BUDGET", "LADDER")
    empty = {f"EVICT_PROFILE_{name}": "" for name in names}
    assert from_environment(empty) == Settings()


def test_a_table_turns_it_on() -> None:
    assert from_environment(TABLE) == Settings("on", table=Path("t.json"))


def test_off_wins_over_a_table() -> None:
    assert from_environment({**TABLE, "EVICT_PROFILE_MODE": "off"}).mode == "off"


def test_observe_needs_no_table() -> None:
    assert from_environment(OBSERVE) == Settings("observe", traces=Path("seen"))


def test_budget_is_a_count() -> None:
    found = from_environment({**TABLE, "EVICT_PROFILE_EXPERT_BUDGET": "24"})
    assert found.expert_budget == 24


def test_off_wins_over_all_else() -> None:
    wrong = {"EVICT_PROFILE_LADDER": "two", "EVICT_PROFILE_TABEL": "t.json"}
    asked = {"EVICT_PROFILE_MODE": "off", **wrong}
    assert from_environment(asked) == Settings()


def test_a_misspelled_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="EVICT_PROFILE_TABEL is unknown; known"):
        from_environment({"EVICT_PROFILE_TABEL": "t.json"})


@pytest.mark.parametrize("said", ["8,2,4", "2, 4, 8", "2,4,8,8"])
def test_ladder_is_sorted_widths(said: str) -> None:
    found = from_environment({**TABLE, "EVICT_PROFILE_LADDER": said})
    assert found.ladder == (2, 4, 8)


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        (
            {"EVICT_PROFILE_MODE": "yes"},
            "^EVICT_PROFILE_MODE=yes: say one of off, observe, on$",
        ),
        (
            {"EVICT_PROFILE_MODE": "on"},
            "MODE=on needs a cost table; set EVICT_PROFILE_TABLE",
        ),
        (
            {"EVICT_PROFILE_MODE": "observe"},
            "MODE=observe needs a folder; set EVICT_PROFILE_TRACES",
        ),
        (
            {**OBSERVE, "EVICT_PROFILE_EXPERT_BUDGET": "8"},
            "EXPERT_BUDGET changes what is accepted.*unset one of them",
        ),
        *(
            (
                {**TABLE, "EVICT_PROFILE_EXPERT_BUDGET": said},
                f"^EVICT_PROFILE_EXPERT_BUDGET={said}: give a whole number",
            )
            for said in ("0", "-3", "many", "2.5")
        ),
        *(
            (
                {**TABLE, "EVICT_PROFILE_LADDER": said},
                f"^EVICT_PROFILE_LADDER={said}: give widths of at least 1, as in",
            )
            for said in ("0,2", "2,,4", "2;4", "two", "2,-4", "2,\u00b2")
        ),
    ],
)
def test_mistakes_name_the_variable(environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        from_environment(environment)
