"""What a peer says it is at, and why it does nothing."""

from __future__ import annotations

from peer.manners import Pause
from peer.node_status import lack_of_company, swarm_loss
from peer.stage import BY_HAND, Stage
from tests.coordinator.rigs import PEERS, core, presence


def test_every_pause_says_why() -> None:
    stage = Stage(None, None, "training")  # type: ignore[arg-type]
    assert stage.reason == ""
    stage.wanted_paused = True
    assert stage.reason == "", "it is obeyed at the end of a step"
    stage.state = "paused"
    assert stage.reason == BY_HAND
    stage._manners = Pause("on battery", silent=False)
    assert stage.reason == "on battery"


def test_a_learner_that_is_alone_says_for_whom_it_waits() -> None:
    one = core()
    assert lack_of_company(one, 0.0) == "waits for others: 1 of at least 2 learners"
    one.presence.see(PEERS[1], presence(), 0.0)
    assert lack_of_company(one, 0.0) == ""
    assert lack_of_company(one, 1e6) != "", "that one is long gone"
    one.contributes = False
    assert lack_of_company(one, 1e6) == ""


def test_the_loss_of_the_swarm_is_the_median_of_what_learners_say() -> None:
    table = core().presence
    assert swarm_loss(table, None, 0.0) is None
    assert swarm_loss(table, 3.0, 0.0) == 3.0
    for peer, loss in zip(PEERS[1:4], (1.0, 2.0, None), strict=True):
        table.see(peer, presence().model_copy(update={"loss": loss}), 0.0)
    assert swarm_loss(table, 3.0, 0.0) == 2.0
    assert swarm_loss(table, None, 0.0) == 1.5
