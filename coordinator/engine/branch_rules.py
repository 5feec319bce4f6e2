"""Choice between our branch and those that probes have found (design §8). Pure: it only reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coordinator.chain.chain import Chain
from coordinator.chain.lineage import Branch, branch_after, fragments_won, majority_signed, without_tail
from coordinator.engine.fork_probe import Fork, still_forks
from coordinator.engine.fragment import FragmentMachine
from coordinator.engine.version_round import bound_until


@dataclass(frozen=True, slots=True)
class LineageChange:
    """A change of one fragment: leave our branch after version `fork` for this chain."""

    fragment: int
    fork: int
    chain: Chain


def changes(
    machines: Sequence[FragmentMachine], found: Mapping[int, Fork | None], now: float
) -> tuple[LineageChange, ...]:
    """Return the branches of one peer that win over ours, by fragment; branches whose state nobody serves do not count.

    `found` has, by fragment, the fork at which its chain leaves ours; None if it does not.
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
    winning = fragments_won(ours, rivals, machines[0].core.bans)
    return tuple(LineageChange(index, forks[index][0], taken[index]) for index in sorted(winning))


def followed(machines: Sequence[FragmentMachine], machine: FragmentMachine, rival: Chain, now: float) -> Chain:
    """Return the part of a longer chain that we follow: all of it, or up to its first minor version.

    We follow minor versions only by the lineage rule, so that a few peers alone cannot lead us away. The rule is about
    the whole branch: its first minor version decides for all later ones, on later pages, too. If it comes after a full
    version of the branch, most of the active set must have signed: others had no time yet to make another version.
    """
    ours = machine.chain.version
    news = rival.after(ours, rival.version - ours)
    first = next((one.version for one in news if one.outcome.minor), None)
    if first is None:
        return rival
    may = majority_signed(rival, first - 1) if first > ours + 1 else takes_minor(machines, machine, rival, now)
    return rival if may else rival.truncated(first - 1)


def takes_minor(machines: Sequence[FragmentMachine], machine: FragmentMachine, rival: Chain, now: float) -> bool:
    """Whether we follow a branch that begins with a minor version (docs/adr/0037).

    We follow it at once if most of the active set signed it, and after three intervals if it must have an honest
    signer. Later one signer of the active set is enough, if the set has made nothing of its own meanwhile. Else a
    single key could make a minor version alone and lead away peers that were cut off. The last two cases require that
    no vote binds us and that we have heard of all live peers. We always follow a branch that we signed before a
    restart: our vote binds us to it.
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
    """Whether a member of the active set signed, and the other members here are too few for a full version.

    If the others that train are most of the active set, they could make a full version, which would win. They count
    as too few, too, once they have had enough time for one.
    """
    core, active = machine.core, branch.active - machine.core.bans.held.keys()
    signers, trainers = branch.signers & active, core.presence.trainers(now)
    others = (active - signers) & (trainers | ({core.me} if core.contributes else set()))
    since = max(bound_until(machine.rounds), core.presence.met_at(others, now))
    few = 2 * len(others) <= len(branch.active)
    return bool(signers) and (few or machine.tempo.most_failed(machine.chain, since, now))


def _has_honest_signer(branch: Branch, machine: FragmentMachine, now: float) -> bool:
    """Whether more than a third of the live members of a fragment's active set signed the branch.

    The caller tries every fragment: the members left of the branch's own one may have been away while the others went
    on. It never takes several active sets together, as hostile keys that are few in each may be many in all.
    """
    core, active = machine.core, machine.chain.active_set() - machine.core.bans.held.keys()
    signers = replace(branch, active=active).signers
    here = {peer for peer in active if peer == core.me or core.presence.is_live(peer, now)}
    return 3 * len(signers) > len(here | signers)
