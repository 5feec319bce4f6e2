"""The rendezvous forms the right generations when workers die, sleep, are cut off or come back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.bench.elastic.rendezvous import (
    ABANDONED_SECONDS,
    FORGOTTEN_SECONDS,
    GRACE_SECONDS,
    Generation,
    Held,
    Rendezvous,
    answer,
)

NAMES = ("a", "b", "c")
FRESH = Held()


def formed(heard_at: float) -> Rendezvous:
    """Return a rendezvous whose first generation trains, and was last heard at this time."""
    rendezvous = Rendezvous(len(NAMES))
    for name in NAMES:
        rendezvous.ask(name, FRESH, 0, 0.0)
    rendezvous.goes_on(1, heard_at)
    return rendezvous


def test_the_first_generation_is_of_all_and_each_hears_of_it() -> None:
    rendezvous = Rendezvous(3)
    assert rendezvous.ask("a", FRESH, 0, 0.0) is None
    assert rendezvous.ask("b", FRESH, 0, 0.1) is None
    found = rendezvous.ask("c", FRESH, 0, 0.2)
    assert found is not None
    assert (found.number, set(found.members)) == (1, set(NAMES))
    assert rendezvous.ask("a", FRESH, 0, 0.3) == found == rendezvous.ask("b", FRESH, 0, 0.3)


def test_survivors_wait_a_little_for_each_other_and_then_go_on_without_the_dead() -> None:
    rendezvous, held = formed(9.0), Held(1, 9)
    assert rendezvous.ask("a", held, 1, 10.0) is None
    assert rendezvous.ask("b", held, 1, 10.1) is None
    assert rendezvous.ask("a", held, 1, 10.0 + GRACE_SECONDS - 0.01) is None
    found = rendezvous.ask("b", held, 1, 10.0 + GRACE_SECONDS)
    assert found is not None
    assert (found.number, set(found.members)) == (2, {"a", "b"})
    assert rendezvous.ask("a", held, 1, 11.0) == found


def test_the_holder_of_the_newest_state_comes_first() -> None:
    rendezvous = formed(9.0)
    rendezvous.ask("a", Held(1, 9), 1, 10.0)
    rendezvous.ask("b", Held(1, 10), 1, 10.0)
    found = rendezvous.ask("c", Held(0, 30), 1, 10.0)  # many steps, but of a branch that was lost
    assert found == Generation(2, ("b", "a", "c"))


def test_a_newcomer_is_let_in_when_the_members_come_for_it() -> None:
    rendezvous = formed(5.0)
    assert rendezvous.ask("new", FRESH, 0, 5.1) is None
    assert not rendezvous.goes_on(1, 5.2)
    assert rendezvous.ask("new", FRESH, 0, 5.3) is None
    for name in NAMES[:2]:
        assert rendezvous.ask(name, Held(1, 4), 1, 5.4) is None
    found = rendezvous.ask("c", Held(1, 4), 1, 5.4)
    assert found is not None
    assert found.members[-1] == "new"
    assert rendezvous.ask("new", FRESH, 0, 5.4) == found
    assert rendezvous.goes_on(2, 5.5)
    assert not rendezvous.goes_on(1, 5.5)  # a member of the one before that has slept


def test_a_worker_that_asks_no_more_is_not_counted_on() -> None:
    rendezvous = formed(5.0)
    rendezvous.ask("new", FRESH, 0, 5.0)
    assert rendezvous.goes_on(1, 5.0 + FORGOTTEN_SECONDS + 0.1)
    rendezvous.ask("a", Held(1, 4), 1, 6.9)
    found = rendezvous.ask("a", Held(1, 4), 1, 6.9 + GRACE_SECONDS)
    assert found == Generation(2, ("a",))


def test_a_generation_that_died_as_a_whole_is_not_waited_for() -> None:
    rendezvous = formed(5.0)
    for name in ("x", "y"):
        assert rendezvous.ask(name, FRESH, 0, 4.5 + ABANDONED_SECONDS) is None
    found = rendezvous.ask("x", FRESH, 0, 5.0 + ABANDONED_SECONDS)
    assert found is not None
    assert set(found.members) == {"x", "y"}


def test_answers_are_what_a_datagram_holds() -> None:
    rendezvous = Rendezvous(1)
    question = {"name": "a", "held": {"generation": 0, "step": 0}, "tried": 0}
    assert answer(rendezvous, question, 0.0) == {"number": 1, "members": ("a",)}
    assert answer(rendezvous, {"number": 1}, 0.1) == {"goes_on": True}
    assert answer(rendezvous, {**question, "name": "b"}, 0.2) == {}


moves = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 3), st.floats(0.0, 2.0)), max_size=60)


@given(moves)
def test_generations_grow_and_whoever_hears_of_one_is_in_it(asked: list[tuple[str, int, float]]) -> None:
    rendezvous, now, newest = Rendezvous(2), 0.0, 0
    tried: dict[str, int] = {}
    for name, step, pause_seconds in asked:
        now += pause_seconds
        found = rendezvous.ask(name, Held(tried.get(name, 0), step), tried.get(name, 0), now)
        if found is not None:
            assert name in found.members
            assert len(set(found.members)) == len(found.members)
            assert tried.get(name, 0) < found.number
            assert found.number >= newest
            newest = tried[name] = found.number
