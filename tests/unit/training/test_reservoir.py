import torch
from torch import nn

from classgrad.training._reservoir import Reservoir

ODDS = [1.0, 0.5, 2.0, 0.0, -3.0, 1.5]


def test_iterates_are_drawn_with_the_given_odds():
    model = nn.Linear(1, 1)
    draws = torch.zeros(len(ODDS))
    for seed in range(4000):
        reservoir = Reservoir(seed)
        for step, odds in enumerate(ODDS):
            reservoir.offer(step, odds, model)
        draws[reservoir.step] += 1
    share = torch.tensor(ODDS).clamp(min=0) / 5
    error = (share * (1 - share) / 4000).sqrt()
    assert ((draws / 4000 - share).abs() <= 4 * error).all()


def test_the_kept_parameters_are_those_of_the_drawn_step_also_after_a_restart():
    model = nn.Linear(1, 1)
    straight, stopped = Reservoir(7), Reservoir(7)
    for step in range(30):
        with torch.no_grad():
            model.weight.fill_(step)
        straight.offer(step, 1.0, model)
        again = Reservoir(0)
        again.load_state_dict(stopped.state_dict())
        stopped = again
        stopped.offer(step, 1.0, model)
    assert straight.step == stopped.step == int(straight.kept["weight"]) == int(stopped.kept["weight"])


def test_something_is_kept_even_where_all_odds_are_zero():
    reservoir = Reservoir(0)
    reservoir.offer(0, float("nan"), nn.Linear(1, 1))
    assert reservoir.step == 0
