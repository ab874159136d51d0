"""Training: at its end when time is up."""

from dataclasses import replace

import pytest
import torch

from examples.small_world.training import Models, Training, rate_at, routing_health

CPU = torch.device("cpu")


def test_a_phase_ends_when_its_time_is_up(recipe, tokens):
    """However few steps there were; with the learning rate at its lowest."""
    models = Models(recipe, 0, CPU)
    training = Training(models, tokens, "target", minutes=1.0)
    training.step, training.seconds = 1, recipe.target.share * 60.0 - 1e-6
    lines = list(training.run())
    assert training.step == 2
    assert training.optimiser.param_groups[0]["lr"] < 0.03 * recipe.target.rate
    assert len(lines) == 2


@pytest.mark.world
@pytest.mark.parametrize("phase", ["target", "drafter"])
def test_each_phase_trains_its_own_model(recipe, tokens, phase):
    """The other model's weights stay, and the loss falls on a stream that repeats."""
    repeated = replace(tokens, train=torch.arange(2000) % 7)
    steps = replace(getattr(recipe, phase), steps=12)
    recipe = replace(recipe, **{phase: steps})
    models = Models(recipe, 0, CPU)
    other = models.drafter if phase == "target" else models.target
    before = [p.clone() for p in other.parameters()]
    training = Training(models, repeated, phase, minutes=60.0)
    first = loss_on(training, repeated)
    list(training.run())
    assert all(map(torch.equal, before, other.parameters()))
    assert loss_on(training, repeated) < first


def loss_on(training, tokens):
    return float(training.loss(tokens.train[:64].view(2, 32))[0].detach())


def test_the_rate_rises_then_falls_to_almost_nothing():
    rates = [rate_at(done / 100) for done in range(101)]
    assert rates[0] < 0.1
    assert rates.index(max(rates)) in (3, 4)
    assert abs(rates[-1] - 0.02) < 1e-9


def test_health_of_a_known_routing():
    """Four of eight experts used in one layer, all evenly in the other."""
    even = torch.arange(16).view(1, 8, 2) % 8
    half = torch.arange(16).view(1, 8, 2) % 4
    health = routing_health(torch.cat([even, half]), 0.0, experts=8)
    assert (health.peak, health.worst, health.dead) == (1.5, 2.0, 4)
