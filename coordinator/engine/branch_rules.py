"""Which branch to go on with, of ours and those that probes have found (design §8). Pure: it reads, and says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coordinator.chain.chain import Chain
from coordinator.chain.lineage import Branch, branch_after, majority_signed, without_tail, won
from coordinator.engine.fork_probe import Fork, still_forks
from coordinator.engine.fragment import FragmentMachine
from coordinator.engine.version_round import bound_until


@dataclass(frozen=True, slots=True)
class LineageChange:
    """Leave our branch of a fragment after version `fork` for this chain."""

    fragment: int
    fork: int
    chain: Chain


def changes(
    machines: Sequence[FragmentMachine], found: Mapping[int, Fork | None], now: float
) -> tuple[LineageChange, ...]:
    """Which branches of one peer win over ours, by fragment; those whose state nobody serves do not exist.

    `found`: where its chains leave ours; None where they do not.
    """
    forks = {
        index: fork for index, fork in found.items() if fork is not None and still_forks(machines[index].chain, *fork)
    }
    taken = {index: without_tail(rival, fork) for index, (fork, rival) in forks.items()}
    rivals = {
        index: fork
        for index, fork in forks.items()
        if not machines[index].state_sync.is_unserved(taken[index].digest, now)
    }
    ours = {one.index: one.chain for one in machines}
    winning = won(ours, rivals, machines[0].core.bans)
    return tuple(LineageChange(index, forks[index][0], taken[index]) for index in sorted(winning))


def followed(machines: Sequence[FragmentMachine], machine: FragmentMachine, rival: Chain, now: float) -> Chain:
    """How far we follow. Minor versions only by the lineage rule: a few peers alone cannot lead us away.

    The rule is about the whole branch: its first minor version decides for all that follow, on later pages, too.
    After a full one there was no time yet in which others could have made another.
    """
    ours = machine.chain.version
    news = rival.after(ours, rival.version - ours)
    first = next((one.version for one in news if one.outcome.minor), None)
    if first is None:
        return rival
    may = majority_signed(rival, first - 1) if first > ours + 1 else takes_minor(machines, machine, rival, now)
    return rival if may else rival.truncated(first - 1)


def takes_minor(machines: Sequence[FragmentMachine], machine: FragmentMachine, rival: Chain, now: float) -> bool:
    """A branch that most of the active set signed; after three intervals, one that must have an honest signer.

    Later, when the active set has made nothing of its own either, one that any of it signed (docs/adr/0037).
    Else a single key could make a minor version by itself, and lead away peers that were cut off. So nothing but
    the first is taken by whom a vote binds, nor before it has heard of all who are there. What an earlier life of
    ours signed is no news: it is that which the vote binds us to.
    """
    version, tempo, core = machine.chain.version, machine.tempo, machine.core
    branch = branch_after(rival, version)
    if core.me in branch.certificates[0].voters:
        return True
    if branch.signers - core.bans.held.keys() and majority_signed(rival, version):
        return True
    if machine.bound(now) or not core.presence.is_complete(branch.active, now):
        return False
    if any(_has_honest_signer(branch, one, now) for one in machines):
        return tempo.minor_allowed(machine.chain, now)
    few = _few_are_left(branch, machine, now)
    return few and tempo.few_allowed(machine.chain, bound_until(machine.rounds), now)


def _few_are_left(branch: Branch, machine: FragmentMachine, now: float) -> bool:
    """Whether any of the active set signed, and those of it who are here and train without are not most of it.

    These can make a full version, which would win; unless they have had the time for it, and did not.
    """
    core, active = machine.core, branch.active - machine.core.bans.held.keys()
    signers, trainers = branch.signers & active, core.presence.trainers(now)
    others = (active - signers) & (trainers | ({core.me} if core.contributes else set()))
    since = max(bound_until(machine.rounds), core.presence.met_at(others, now))
    few = 2 * len(others) <= len(branch.active)
    return bool(signers) and (few or machine.tempo.most_failed(machine.chain, since, now))


def _has_honest_signer(branch: Branch, machine: FragmentMachine, now: float) -> bool:
    """Whether more than a third signed of those of a fragment's active set that are here.

    Any fragment's: who is left of one's own may have been away while the others went on. Never of several together,
    since hostile keys that are few in each may be many in all.
    """
    core, active = machine.core, machine.chain.active_set() - machine.core.bans.held.keys()
    signers = replace(branch, active=active).signers
    here = {peer for peer in active if peer == core.me or core.presence.is_live(peer, now)}
    return 3 * len(signers) > len(here | signers)
