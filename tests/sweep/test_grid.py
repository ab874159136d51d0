"""A grid holds every cell that can exist, and says why the others cannot."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evict_profile.cells import Cell
from evict_profile.config import GridSpec, SweepSpec, load_model, load_sweep
from evict_profile.errors import ConfigError
from evict_profile.records import replace
from evict_profile.sweep.grid import make_grid, too_few
from tests.shipped import tracked

TINY = load_model("tiny")
some = st.sets(st.sampled_from([1, 2, 3, 4, 8, 16]), min_size=1).map(tuple)


@st.composite
def specs(draw):
    unions = draw(st.sets(st.integers(4, 32), min_size=1)) | {4}
    axes = GridSpec(
        width=draw(some),
        union=tuple(unions),
        context=draw(some),
        batch=draw(some),
        natural=draw(st.booleans()),
    )
    fewest = min(axes.width) * min(axes.batch)
    limited = replace(axes, max_tokens=draw(st.integers(fewest, 256)))
    return SweepSpec(name="drawn", grid=limited)


def spec_of(**axes):
    return SweepSpec(name="given", grid=GridSpec(**{"context": (64,), **axes}))


@given(specs())
def test_feasible_and_infeasible_make_the_whole_product(spec):
    """Every forced point within max_tokens is measured, or refused for its slots."""
    grid, axes = make_grid(spec, TINY), spec.grid
    forced, refused = [c for c in grid.cells if c.union], dict(grid.infeasible)
    seats = sum(w * b <= axes.max_tokens for w in axes.width for b in axes.batch)
    points = seats * len(axes.context) * len(axes.union)
    assert len(forced) + len(refused) == len({*forced, *refused}) == points
    assert max(c.tokens for c in (*grid.cells, *refused)) <= axes.max_tokens
    assert all(c.union <= c.tokens * 4 for c in grid.cells)
    for cell, reason in refused.items():
        assert cell.union > cell.tokens * 4
        assert f"{cell.tokens * 4} slots" in reason and f"U={cell.union}" in reason


@given(specs())
def test_without_dense_layers_tokens_alone_tell_non_moe_cells_apart(spec):
    """Embedding and head know tokens only, so each count is measured once."""
    grid = make_grid(spec, TINY)
    counts = [c.tokens for c in grid.cells if c.part == "non_moe"]
    assert sorted(counts) == sorted({c.tokens for c in grid.cells})


def test_with_dense_layers_context_tells_them_apart_too():
    """Dense layers read a KV cache, so every point is measured."""
    dense = replace(TINY, dense_layers=1, dense_width=64)
    grid = make_grid(spec_of(width=(1, 2), union=(4,), context=(64, 128)), dense)
    seats = {(c.width, c.context) for c in grid.cells if c.part == "non_moe"}
    assert seats == {(1, 64), (1, 128), (2, 64), (2, 128)}


def test_natural_cells_are_left_out_on_request():
    grid = make_grid(spec_of(width=(1, 2), union=(4,), natural=False), TINY)
    assert not [c for c in grid.cells if c.part == "layers" and c.split == "natural"]


@given(st.integers(2, 40))
def test_union_points_run_from_top_k_to_all_experts(points):
    """A count of points spreads unions by ratio, both ends included."""
    unions = GridSpec(width=(8,), union=points, context=(64,)).unions_for(TINY)
    assert (unions[0], unions[-1]) == (4, 32)
    assert len(unions) <= points
    assert list(unions) == sorted(set(unions))


def test_a_union_that_the_model_cannot_have_is_refused():
    with pytest.raises(ConfigError, match=r"'given'.*grid.union 33.*choose 4..32"):
        make_grid(spec_of(width=(8,), union=(4, 33)), TINY)


def test_a_grid_without_any_feasible_cell_is_refused():
    """One token cannot activate 32 experts; the message says what to add."""
    with pytest.raises(ConfigError, match="add larger widths or smaller unions"):
        make_grid(spec_of(width=(1,), union=(32,)), TINY)


@given(specs())
def test_anchor_is_a_forced_cell_of_the_grid(spec):
    """At the smallest context and the smallest batch that has a forced cell."""
    grid = make_grid(spec, TINY)
    forced = [c for c in grid.cells if c.union]
    assert grid.anchor in forced
    assert grid.anchor.context == min(c.context for c in forced)
    assert grid.anchor.batch == min(c.batch for c in forced)


def test_cells_are_sorted(grid, model, spec):
    """The order of the axes in the file does not matter."""
    axes = spec.grid
    turned = replace(axes, width=axes.width[::-1], batch=axes.batch[::-1])
    assert make_grid(replace(spec, grid=turned), model).cells == grid.cells
    assert list(grid.cells) == sorted(grid.cells)
    assert all(isinstance(c, Cell) for c in grid.cells)


@settings(max_examples=40)
@given(specs(), st.integers(0, 20))
def test_validation_cells_are_feasible_and_none_of_the_grid(spec, count):
    """They lie inside the axes, and there are no more of them than were asked for."""
    spec = replace(spec, grid=replace(spec.grid, validation=count))
    grid, axes = make_grid(spec, TINY), spec.grid
    off = grid.between + grid.validation
    assert len(set(off)) == len(off) <= 2 * count
    assert not set(off) & set(grid.cells)
    assert len(grid.between) - len(grid.validation) in (0, 1)
    for cell in off:
        assert TINY.moe.top_k <= cell.union <= TINY.largest_union(cell.tokens)
        assert min(axes.width) <= cell.width <= max(axes.width)
        assert cell.tokens <= axes.max_tokens
        assert min(axes.batch) <= cell.batch <= max(axes.batch)


def test_the_only_cell_between_the_levels_is_fitted():
    spec = spec_of(width=(1, 3), union=(4,), context=(64,), batch=(1,), validation=8)
    grid = make_grid(spec, TINY)
    assert (len(grid.between), len(grid.validation)) == (1, 0)


def test_validation_cells_lie_between_the_levels():
    """No width, union, context or batch of theirs is one of the grid's."""
    axes = {"width": (1, 4, 16, 64), "union": (4, 16, 32), "context": (64, 512)}
    axes["batch"] = (1, 4)
    grid = make_grid(spec_of(**axes, validation=16), TINY)
    assert len(grid.between) == len(grid.validation) == 16
    for name, levels in axes.items():
        assert not {getattr(c, name) for c in grid.validation} & set(levels)


def test_whole_forwards_are_validated_at_the_widths_of_the_grid():
    """An engine captures the widths that it was opened for."""
    spec = spec_of(width=(1, 4, 16, 64), union=(4, 16, 32), validation=8)
    validation = make_grid(replace(spec, whole=True), TINY).validation
    assert {c.width for c in validation} <= {1, 4, 16, 64}
    assert len(validation) == 8


@given(specs(), st.integers(1, 60))
def test_spread_cells_are_some_of_the_product(spec, count):
    """At no more places than asked for, but for the corners, which all stay."""
    grid = make_grid(spec, TINY)
    some = make_grid(replace(spec, grid=replace(spec.grid, cells=count)), TINY)
    assert set(some.cells) <= set(grid.cells)
    forced, all_forced = ([c for c in g.cells if c.union] for g in (some, grid))
    places = {(c.width, c.union, c.context, c.batch) for c in forced}
    corners = 4 * len({(c.context, c.batch) for c in all_forced})
    assert len(places) <= max(count, corners)
    for axis in ("width", "union", "context", "batch"):
        ends = [
            {end(getattr(c, axis) for c in cells) for end in (min, max)}
            for cells in (forced, all_forced)
        ]
        assert ends[0] == ends[1]


def test_spread_cells_have_all_levels():
    """A third of the product has every width and every union."""
    axes = {"width": (1, 2, 3, 5, 8, 12, 16), "union": 9, "context": (64, 512)}
    grid = make_grid(spec_of(**axes), TINY)
    third = make_grid(spec_of(**axes, cells=len(grid.cells) // 3), TINY)
    for axis in ("width", "union", "context"):
        whole, some = ({getattr(c, axis) for c in g.cells} for g in (grid, third))
        assert some == whole


@pytest.mark.parametrize(
    ("axes", "whole", "lacks"),
    [
        ({"width": (1, 8), "union": 2}, False, "3 forced and 2 non-MoE cells"),
        ({"width": (1, 2, 4, 8), "union": 2}, True, "a fit needs 8 and 0"),
        ({"width": tuple(range(1, 9)), "union": (4,)}, False, "needs two unions"),
        ({"width": (1, 2, 4, 8), "union": 5}, False, ""),
    ],
)
def test_a_grid_says_what_a_fit_lacks(axes, whole, lacks):
    spec = replace(spec_of(batch=(1,), **axes), whole=whole)
    said = too_few(make_grid(spec, TINY).measured, whole)
    assert lacks in said if lacks else said == ""


@pytest.mark.parametrize("model", ["tiny", "qwen3-30b-a3b", "deepseek-v3"])
@pytest.mark.parametrize("plan", tracked("configs/sweeps/*.yaml"), ids=lambda p: p.stem)
def test_every_shipped_plan_has_enough_cells_for_its_fit(plan, model):
    spec = load_sweep(str(plan))
    assert too_few(make_grid(spec, load_model(model)).measured, spec.whole) == ""
