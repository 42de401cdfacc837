"""Secure sums: the plain sum, who may leave when, and what nobody is told."""

from fractions import Fraction

import numpy as np
import pytest

from rookery.errors import ConfigError, ProtocolError, RefusedError
from rookery.server.ledger import Ledger
from rookery.server.masks import Grid, Key, seal, stream, unseal
from rookery.server.privacy import clip, release
from rookery.server.secrets import Contributor
from rookery.server.shamir import PRIME, join, split
from rookery.server.sums import Advert, Masked, Pair, Question, Terms
from summing import Party, random_updates, summed, terms

NAMES = ["a", "b", "c", "d", "e"]  # the threshold is 4 unless it is said


def plain(updates, names=None):
    return sum(updates[name].astype(np.float64) for name in names or updates)


def refused(code):
    return pytest.raises(RefusedError, check=lambda error: error.code == code)


def test_the_sum_of_all_is_the_plain_sum():
    updates = random_updates(5)
    assert summed(updates) == pytest.approx(plain(updates), abs=1e-12)


def test_two_clients_are_enough():
    updates = random_updates(2)
    assert summed(updates) == pytest.approx(plain(updates), abs=1e-12)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_who_leaves_before_its_update_is_there_is_not_in_the_sum(step):
    updates = random_updates(6)
    total = summed(updates, left={"c2": step}, threshold=4)
    assert total == pytest.approx(plain(updates, [n for n in updates if n != "c2"]), abs=1e-12)


def test_who_leaves_after_its_update_was_taken_is_in_the_sum():
    updates = random_updates(6)
    total = summed(updates, left={"c1": 4, "c4": 4}, threshold=4)
    assert total == pytest.approx(plain(updates), abs=1e-12)


def test_clients_may_leave_in_every_step_of_one_sum():
    updates = random_updates(9)
    total = summed(updates, left={"c0": 1, "c3": 2, "c5": 3, "c8": 4}, threshold=5)
    stayed = [name for name in updates if name not in ("c0", "c3", "c5")]
    assert total == pytest.approx(plain(updates, stayed), abs=1e-12)


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_fewer_than_the_threshold_in_any_step_is_refused(step):
    with refused("quorum"):
        summed(random_updates(5), left={"c0": step, "c1": step})


def test_a_step_without_a_quorum_goes_on_once_more_have_come():
    party = Party.of(NAMES).advertised(NAMES[:3])
    with refused("quorum"):
        party.server.roster()
    party.advertised(NAMES[3:4])
    assert sorted(party.server.roster()) == NAMES[:4]


def test_what_the_server_gets_differs_from_the_update_in_every_number():
    update = np.full(64, 0.25, np.float32)
    party = Party.of(NAMES, size=64).advertised().shared()
    steps = Grid(1.0, 5).quantise(update)

    vectors = [party.clients[name].mask(party.server.deliver(name), update) for name in "ab"]

    for masked in vectors:
        assert not np.any(masked.vector == steps)
    assert not np.any(vectors[0].vector == vectors[1].vector)


def test_masked_updates_are_uniform_whatever_was_masked():
    """Top bits of 2,000 numbers: 1,000 ones, 6 deviations of 22; once in 10^8 runs by chance."""
    for value in (0.0, 1.0):
        party = Party.of(NAMES[:2], size=2_000).advertised().shared()
        masked = party.clients["a"].mask(party.server.deliver("a"), np.full(2_000, value))
        ones = int((masked.vector >> np.uint64(63)).sum())
        assert abs(ones - 1_000) < 6 * np.sqrt(500)


def test_a_slow_client_that_was_called_lost_stays_masked():
    """Its pairwise masks are known by then; its own is not (the second mask's whole purpose)."""
    updates = random_updates(5, size=32)
    party = Party.of(list(updates), size=32).advertised().shared()
    slow = party.clients["c4"].mask(party.server.deliver("c4"), updates["c4"])
    on_time = {name: updates[name] for name in updates if name != "c4"}
    party.masked(on_time).answered(on_time)
    party.server.total()

    bare = slow.vector.copy()
    party.server._fill_gap(bare, "c4", [])  # its key is known: this does not raise
    names, key = sorted(on_time), party.clients["c4"]._mask_key
    for name in names:  # what a curious server would do with the key
        about = party.terms.about("mask", *sorted(("c4", name)))
        mask = stream(key.agreed(party.server.roster()[name].mask_key, about), 32)
        bare += mask if name < "c4" else -mask

    steps = Grid(1.0, 5).quantise(updates["c4"])
    assert not np.any(bare == steps)
    assert np.array_equal(bare - stream(party.clients["c4"]._seed, 32), steps)
    with refused("late"):
        party.server.collect(slow)


def test_a_client_never_reveals_both_secrets_of_another():
    party = Party.of(NAMES).advertised().shared()
    party.masked({name: np.zeros(4) for name in NAMES})
    everybody = frozenset(NAMES)

    with refused("both"):
        party.clients["a"].unmask(Question(everybody, frozenset("e")))


def test_a_client_answers_one_question_and_no_other():
    party = Party.of(NAMES).advertised().shared()
    party.masked({name: np.zeros(4) for name in NAMES})
    first = Question(frozenset(NAMES), frozenset())
    answer = party.clients["a"].unmask(first)

    with refused("both"):
        party.clients["a"].unmask(Question(frozenset("abcd"), frozenset("e")))
    assert party.clients["a"].unmask(first) == answer  # it may have been lost on its way


@pytest.mark.parametrize(
    ("survivors", "dropped", "code"),
    [("abc", "de", "quorum"), ("abcd", "", "unknown_worker"), ("abcde", "z", "unknown_worker")],
)
def test_a_client_answers_no_question_about_other_clients_than_it_masked_with(
    survivors, dropped, code
):
    party = Party.of(NAMES).advertised().shared()
    party.masked({name: np.zeros(4) for name in NAMES})
    with refused(code):
        party.clients["a"].unmask(Question(frozenset(survivors), frozenset(dropped)))


def test_a_wrong_share_is_refused_and_the_sum_is_made_of_the_others():
    updates = random_updates(5)
    party = Party.of(list(updates), threshold=4).advertised().shared()
    party.masked({name: updates[name] for name in updates})
    answer = party.clients["c0"].unmask(party.server.question())
    answer.seeds["c3"] = bytes(66)

    with refused("share"):
        party.server.answer(answer)
    total = party.answered(["c1", "c2", "c3", "c4"]).server.total()

    assert total == pytest.approx(plain(updates), abs=1e-12)


def test_a_wrong_share_of_a_lost_clients_key_is_refused():
    party = Party.of(NAMES).advertised().shared()
    party.masked({name: np.zeros(4) for name in "abcd"})
    answer = party.clients["a"].unmask(party.server.question())
    answer.keys["e"] = answer.seeds["b"]
    with refused("share"):
        party.server.answer(answer)


def test_shares_that_were_changed_on_their_way_are_refused():
    party = Party.of(NAMES).advertised().shared()
    parcels = party.server.deliver("a")
    last = parcels[-1]
    changed = last._replace(sealed=bytes([last.sealed[0] ^ 1]) + last.sealed[1:])
    with refused("share"):
        party.clients["a"].mask([*parcels[:-1], changed], np.zeros(4))


def test_shares_other_than_their_digests_are_refused():
    party = Party.of(NAMES).advertised().shared()
    parcels = party.server.deliver("a")
    changed = parcels[-1]._replace(digests=Pair(bytes(32), bytes(32)))
    with refused("share"):
        party.clients["a"].mask([*parcels[:-1], changed], np.zeros(4))


def test_shares_for_another_client_are_refused():
    party = Party.of(NAMES).advertised().shared()
    with refused("unknown_worker"):
        party.clients["a"].mask(party.server.deliver("b"), np.zeros(4))


def test_a_lost_client_whose_shares_do_not_make_its_key_is_found_out():
    party = Party.of(NAMES).advertised()
    honest = party.clients["e"]._mask_key
    party.clients["e"]._mask_key = Key.fresh()  # shares another key than it advertised
    advertised = party.clients["e"].advertise
    party.clients["e"].advertise = lambda: advertised()._replace(mask_key=honest.public)
    party.shared().masked({name: np.zeros(4) for name in "abcd"}).answered("abcd")
    with refused("share"):
        party.server.total()


def test_an_update_of_garbage_is_found_out():
    """64 random numbers of 64 bits: half or fewer are in range, so once in 2^64 it is not."""
    party = Party.of(NAMES, size=64).advertised().shared()
    party.masked({name: np.zeros(64) for name in "abcd"})
    garbage = np.random.default_rng(0).integers(0, 2**64, 64, dtype=np.uint64)
    party.server.collect(Masked("e", garbage))
    party.answered(NAMES[:4])
    with refused("range"):
        party.server.total()


@pytest.mark.parametrize("key", [bytes(31), bytes(32), b""])
def test_bytes_that_are_no_key_are_refused(key):
    """Zero is a point that agrees on the same secret with everybody."""
    party = Party.of(NAMES)
    good = party.clients["a"].advertise()
    with refused("key"):
        party.server.admit(good._replace(mask_key=key))
    party.server.admit(good)


def test_a_client_refuses_a_roster_with_other_keys_under_its_name():
    party = Party.of(NAMES).advertised()
    roster = party.server.roster()
    roster["a"] = Contributor(party.terms, "a").advertise()
    with refused("roster"):
        party.clients["a"].share(roster)


def test_a_client_refuses_a_roster_in_which_two_have_one_key():
    party = Party.of(NAMES).advertised()
    roster = party.server.roster()
    roster["b"] = Advert("b", roster["c"].seal_key, roster["b"].mask_key)
    with refused("roster"):
        party.clients["a"].share(roster)


def test_each_client_comes_once_to_each_step():
    party = Party.of(NAMES)
    party.advertised(NAMES[:4])
    with refused("duplicate"):
        party.advertised(["a"])
    party.advertised(["e"])
    parcels = party.clients["a"].share(party.server.roster())
    party.server.post(parcels)
    with refused("duplicate"):
        party.server.post(parcels)
    party.shared(NAMES[1:])
    masked = party.clients["a"].mask(party.server.deliver("a"), np.zeros(4))
    party.server.collect(masked)
    with refused("duplicate"):
        party.server.collect(masked)


def test_strangers_and_too_many_are_refused():
    party = Party.of(NAMES).advertised()
    with refused("full"):
        party.server.admit(Contributor(party.terms, "z").advertise())
    party.shared(NAMES[:4])
    with refused("unknown_worker"):
        party.server.deliver("e")
    with refused("unknown_worker"):
        party.server.collect(Masked("z", np.zeros(4, np.uint64)))


def test_messages_of_a_later_step_are_refused():
    party = Party.of(NAMES).advertised()
    with refused("early"):
        party.server.collect(Masked("a", np.zeros(4, np.uint64)))
    with refused("quorum"):
        party.server.total()


@pytest.mark.parametrize("vector", [np.zeros(3, np.uint64), np.zeros(4), np.zeros((4, 1))])
def test_a_masked_update_of_another_shape_or_type_is_refused(vector):
    party = Party.of(NAMES).advertised().shared()
    party.server.deliver("a")
    with refused("schema"):
        party.server.collect(Masked("a", vector))


@pytest.mark.parametrize(
    ("update", "code"),
    [
        (np.zeros(3), "schema"),
        (np.array([0, 0, 0, 1.01]), "range"),
        (np.array([0, 0, 0, np.nan]), "range"),
        (np.array([0, 0, 0, -np.inf]), "range"),
    ],
)
def test_an_update_that_cannot_be_summed_never_leaves_its_client(update, code):
    party = Party.of(NAMES).advertised().shared()
    with refused(code):
        party.clients["a"].mask(party.server.deliver("a"), update)


def test_steps_out_of_order_are_our_own_mistake():
    party = Party.of(NAMES)
    with pytest.raises(ProtocolError):
        party.clients["a"].unmask(Question(frozenset(), frozenset()))
    with pytest.raises(ProtocolError):
        party.clients["a"].mask([], np.zeros(4))
    party.advertised().shared()
    with pytest.raises(ProtocolError):
        party.clients["a"].share(party.server.roster())


@pytest.mark.parametrize(
    "given",
    [
        {"clients": 1, "threshold": 1},
        {"clients": 6, "threshold": 3},  # two halves could be asked two questions
        {"clients": 6, "threshold": 7},
        {"size": 0},
        {"bound": 0.0},
        {"bound": float("nan")},
        {"bound": 1e31},
    ],
)
def test_terms_under_which_nothing_is_secret_or_fits_are_refused(given):
    with pytest.raises(ConfigError):
        terms(**given)


def test_every_sum_has_a_session_of_its_own():
    first, second = terms(), terms()
    assert first.session != second.session
    assert first.about("mask", "a", "b") != second.about("mask", "a", "b")
    with pytest.raises(ConfigError):
        Terms(session=b"short", size=1, bound=1.0, clients=3, threshold=2)


@pytest.mark.parametrize(("clients", "threshold"), [(2, 2), (3, 3), (6, 5), (100, 67)])
def test_the_threshold_is_above_two_thirds_where_none_is_given(clients, threshold):
    assert terms(clients=clients).threshold == threshold


def test_quantising_never_makes_an_update_longer():
    update = np.random.default_rng(1).normal(size=1000)
    grid = Grid(10.0, 1000)
    back = grid.restore(grid.quantise(update), 1)
    assert np.all(np.abs(back) <= np.abs(update))
    assert np.abs(back - update).max() < grid.step


@pytest.mark.parametrize("clients", [2, 3, 64, 1000])
def test_all_clients_at_their_bound_do_not_wrap(clients):
    grid = Grid(0.7, clients)
    most = int(grid.quantise(np.array([0.7]))[0])
    assert 2**61 - clients < clients * most <= 2**62
    total = np.array([clients * most], np.uint64)
    assert grid.restore(total, clients) == pytest.approx(0.7 * clients)
    assert grid.restore(-total, clients) == pytest.approx(-0.7 * clients)


def test_a_secure_sum_of_clipped_updates_can_be_released_privately():
    """Clients clip; rounding toward zero keeps them clipped; the server adds noise to the sum."""
    clipped = {name: clip(5 * update, 1.0) for name, update in random_updates(5).items()}
    book = Ledger(1e300, 1e-3, noise_multiplier=1e-7, sample_rate=1.0, clients=5)
    mean = release(summed(clipped), book, clip_norm=1.0)
    assert mean == pytest.approx(plain(clipped) / 5, abs=1e-5)


def test_a_mask_stream_is_a_function_of_its_key():
    """The first block of ChaCha20 with a key and nonce of zeros: RFC 7539, A.1, vector 1."""
    first = stream(bytes(32), 8)
    assert first.tobytes().hex().startswith("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1a")
    assert np.array_equal(stream(bytes(32), 100)[:8], first)
    assert not np.any(stream(bytes(31) + b"1", 8) == first)


def test_two_keys_agree_for_one_purpose_and_differ_for_another():
    one, other = Key.fresh(), Key.fresh()
    assert one.agreed(other.public, b"x") == other.agreed(one.public, b"x")
    assert one.agreed(other.public, b"x") != one.agreed(other.public, b"y")


def test_what_was_sealed_for_one_purpose_does_not_open_for_another():
    sealed = seal(bytes(32), b"text", b"x")
    assert unseal(bytes(32), sealed, b"x") == b"text"
    with refused("share"):
        unseal(bytes(32), sealed, b"y")


def test_the_modulus_of_shares_is_prime():
    """Lucas and Lehmer's test for 2^521 - 1."""
    s = 4
    for _ in range(519):
        s = (s * s - 2) % PRIME
    assert s == 0
    assert PRIME == 2**521 - 1


def test_shares_are_a_polynomial_and_its_secret_is_at_zero():
    """By hand for 2 of 3: a line through (1, y1) and (2, y2) is at 2 y1 - y2 where x is 0."""
    secret = bytes(range(32))
    y1, y2, y3 = (int.from_bytes(share) for share in split(secret, 2, 3))
    assert (2 * y1 - y2) % PRIME == int.from_bytes(secret)
    assert Fraction((y1 + y3) - 2 * y2, PRIME).denominator == 1


def test_too_few_shares_and_foreign_ones_are_refused():
    ours, theirs = (split(bytes([i]) * 32, 3, 5) for i in range(2))
    with refused("quorum"):
        join({1: ours[0], 2: ours[1]}, 3)
    with refused("share"):
        join({1: ours[0], 2: ours[1], 3: theirs[2]}, 3)
