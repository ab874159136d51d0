"""The environment's settings are read, and a mistake in them is one sentence."""

from pathlib import Path

import pytest

from evict_profile.errors import ConfigError
from evict_profile.integrations.environment import (
    VARIABLES,
    Settings,
    from_environment,
)
from examples.llama_cpp.library import ENVIRONMENT as LIBLLAMA

TABLE = {"EVICT_PROFILE_TABLE": "t.json"}
OBSERVE = {"EVICT_PROFILE_MODE": "observe", "EVICT_PROFILE_TRACES": "seen"}


@pytest.mark.parametrize(
    ("environment", "settings"),
    [
        ({}, Settings(mode="off")),
        ({f"EVICT_PROFILE_{name}": "" for name in VARIABLES}, Settings(mode="off")),
        (TABLE, Settings(mode="on", table=Path("t.json"))),
        (OBSERVE, Settings(mode="observe", traces=Path("seen"))),
        (
            {**TABLE, "EVICT_PROFILE_EXPERT_BUDGET": "24"},
            Settings(mode="on", table=Path("t.json"), expert_budget=24),
        ),
        (
            {**TABLE, "EVICT_PROFILE_WIDTH": "8"},
            Settings(mode="on", table=Path("t.json"), width=8),
        ),
        (
            {**TABLE, "EVICT_PROFILE_FEWER_STEPS": "3"},
            Settings(mode="on", table=Path("t.json"), fewer_steps=3),
        ),
    ],
)
def test_what_is_asked_for_is_read(environment, settings):
    assert from_environment(environment) == settings


@pytest.mark.parametrize("said", ["8,2,4", "2, 4, 8", "2,4,8,8"])
def test_capture_sizes_are_a_set_of_widths(said):
    found = from_environment({**TABLE, "EVICT_PROFILE_CAPTURE_SIZES": said})
    assert found.capture_sizes == {2, 4, 8}


def test_off_wins_over_all_else():
    wrong = {"EVICT_PROFILE_CAPTURE_SIZES": "two", "EVICT_PROFILE_TABEL": "t.json"}
    asked = {**TABLE, **wrong, "EVICT_PROFILE_MODE": "off"}
    assert from_environment(asked) == Settings()


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"EVICT_PROFILE_TABEL": "t.json"}, "^EVICT_PROFILE_TABEL is unknown; known"),
        (
            {"EVICT_PROFILE_MODE": "yes"},
            "^EVICT_PROFILE_MODE=yes: say one of off, observe, on$",
        ),
        (
            {"EVICT_PROFILE_MODE": "on"},
            "MODE=on needs a cost table; set EVICT_PROFILE_TABLE",
        ),
        (
            {"EVICT_PROFILE_CAPTURE_SIZES": "2,4"},
            "CAPTURE_SIZES needs a cost table; set EVICT_PROFILE_TABLE",
        ),
        (
            {"EVICT_PROFILE_WIDTH": "8"},
            "WIDTH needs a cost table; set EVICT_PROFILE_TABLE",
        ),
        (
            {**TABLE, "EVICT_PROFILE_WIDTH": "8", "EVICT_PROFILE_CAPTURE_SIZES": "2,4"},
            "WIDTH is one width and EVICT_PROFILE_CAPTURE_SIZES several.*unset one",
        ),
        (
            {"EVICT_PROFILE_MODE": "observe"},
            "MODE=observe needs a folder; set EVICT_PROFILE_TRACES",
        ),
        (
            {**OBSERVE, "EVICT_PROFILE_EXPERT_BUDGET": "8"},
            "EXPERT_BUDGET changes what is accepted.*unset one of them",
        ),
        (
            {**OBSERVE, **TABLE, "EVICT_PROFILE_WIDTH": "8"},
            "WIDTH cuts trees, and .*MODE=observe records whole ones.*unset one of",
        ),
        *(
            (
                {**TABLE, **other, "EVICT_PROFILE_FEWER_STEPS": "3"},
                "FEWER_STEPS needs widths that are chosen; .*WIDTH and MODE",
            )
            for other in (OBSERVE, {"EVICT_PROFILE_WIDTH": "8"})
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
                {**TABLE, "EVICT_PROFILE_CAPTURE_SIZES": said},
                f"^EVICT_PROFILE_CAPTURE_SIZES={said}: give widths of at least 1",
            )
            for said in ("0,2", "2,,4", "2;4", "two", "2,-4", "2,\u00b2")
        ),
    ],
)
def test_mistakes_name_the_variable(environment, sentence):
    with pytest.raises(ConfigError, match=sentence):
        from_environment(environment)


@pytest.mark.parametrize("name", ["EVICT_PROFILE_TABLES", LIBLLAMA])
def test_what_the_rest_of_the_package_reads_is_no_misspelt_setting(name):
    assert from_environment({name: "a:b"}) == Settings()
    assert from_environment({name: "a:b", **TABLE}).mode == "on"
