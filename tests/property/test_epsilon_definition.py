"""Epsilon as others compute it: opacus' accountant, and the formula where there is one."""

import math

import numpy as np
import pytest

from rookery.server.privacy.privacy_budget import Spent, epsilon_of

# (z, q, rounds, delta). Rates from 1 down to that of a batch of 256 among 60,000.
CASES = [
    (1.1, 256 / 60_000, 14_040, 1e-5),
    (1.1, 0.01, 1_000, 1e-5),
    (2.0, 0.2, 200, 1e-3),
    (4.0, 0.5, 20, 1e-2),
    (0.5, 0.02, 10, 1e-5),
    (1.0, 1.0, 1, 1e-5),
    (5.0, 1.0, 100, 1e-5),
]
WEAK = (0.8, 0.1, 50, 1e-4)  # epsilon 7.9, at an order that is no whole number


def of_opacus(z, q, rounds, delta):
    accountants = pytest.importorskip("opacus.accountants")
    theirs = accountants.RDPAccountant()
    theirs.history = [(z, q, rounds)]
    return theirs.get_epsilon(delta)


@pytest.mark.parametrize(("z", "q", "rounds", "delta"), CASES)
def test_epsilon_is_that_of_opacus(z, q, rounds, delta):
    ours = epsilon_of((Spent(z, q, rounds),), delta)
    assert ours == pytest.approx(of_opacus(z, q, rounds, delta), abs=1e-2)


@pytest.mark.parametrize(("z", "q", "rounds", "delta"), [*CASES, WEAK])
def test_epsilon_is_nowhere_less_than_that_of_opacus(z, q, rounds, delta):
    """Between whole orders dp-accounting takes a series by its absolute values: a bit more."""
    ours = epsilon_of((Spent(z, q, rounds),), delta)
    theirs = of_opacus(z, q, rounds, delta)
    assert theirs - 1e-6 <= ours <= 1.005 * theirs


def test_rounds_of_two_kinds_add_up_as_they_do_in_opacus():
    accountants = pytest.importorskip("opacus.accountants")
    theirs = accountants.RDPAccountant()
    theirs.history = [(1.1, 0.01, 500), (2.0, 0.02, 300)]

    ours = epsilon_of((Spent(1.1, 0.01, 500), Spent(2.0, 0.02, 300)), 1e-5)

    assert ours == pytest.approx(theirs.get_epsilon(1e-5), abs=1e-2)


@pytest.mark.parametrize("z", [0.7, 2.0, 9.0])
@pytest.mark.parametrize("rounds", [1, 7, 50])
def test_epsilon_of_a_plain_gaussian_is_the_one_of_the_formula(z, rounds):
    """RDP alpha / (2 z^2) a round, made (epsilon, delta) by prop. 12 of Canonne et al. 2020."""
    delta = 1e-4
    alpha = np.linspace(1.01, 200, 400_000)
    rdp = rounds * alpha / (2 * z**2)
    exact = (rdp + np.log1p(-1 / alpha) - (math.log(delta) + np.log(alpha)) / (alpha - 1)).min()

    ours = epsilon_of((Spent(z, 1.0, rounds),), delta)

    assert exact - 1e-6 <= ours <= 1.005 * exact  # a grid of orders can only lose


def test_accounting_says_nothing_in_the_log(caplog):
    """At these numbers dp-accounting leaves some orders out, and would say so for each."""
    epsilon_of((Spent(4.0, 0.5, 21),), 1e-2)
    assert not caplog.records
