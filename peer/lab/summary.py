"""The report of a lab run (design §11), built from its final state."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from coordinator.chain.certificate import Certificate
from coordinator.views.report import ReportedBan
from peer.attacks.data import has_trigger_rate, trigger_rate
from peer.lab.laboratory import Laboratory
from peer.lab.report import Baseline, CurvePoint, LabReport
from peer.learner.devices import devices_name
from peer.learner.evaluation import next_token_accuracy
from peer.learner.optimizers.inner_optimizer import bytes_per_parameter
from peer.rounds.counters import RunCounters
from peer.swarm.report import delays

Seconds = tuple[float, float]
"""Wall time, and CPU time of the whole process, in seconds."""


def bans_of(lab: Laboratory) -> tuple[ReportedBan, ...]:
    """Return every key that a believed peer has banned, once."""
    living = [peer.engine for peer in lab.believed if peer.engine is not None]
    guilts = {ban.guilt.peer: ban.guilt for engine in living for ban in engine.core.bans.held.values()}
    return tuple(
        ReportedBan(peer=one.peer, reason=one.reason, by=sum(one.peer in engine.core.bans for engine in living))
        for one in guilts.values()
    )


def lineage(lab: Laboratory) -> list[Certificate]:
    """Return the certificates that led to the peer with the most versions, without abandoned branches."""
    living = (peer.engine.chains for peer in lab.believed if peer.engine is not None)
    newest = max(living, key=lambda chains: sum(chain.version for chain in chains), default=[])
    return [certificate for chain in newest for certificate in lab.world.watcher.lineage(chain)]


def report_of(
    lab: Laboratory, used: Seconds, baseline: Mapping[str, Baseline], curves: Sequence[CurvePoint] = ()
) -> LabReport:
    """Return the report of a run that has ended; `curves` are those of the baselines."""
    config, tally, world = lab.options.config, lab.context.tally, lab.world
    counters = RunCounters(config.pace.fragments)
    for certificate in lineage(lab):
        counters.certify(certificate)
    certified, learners = counters.certified, len(world.peers)
    digests = state_digests(lab)
    anchors = lab.newest().anchors.all_anchors() if lab.believed else None
    rated = lab.diverged is None and has_trigger_rate(config)
    return LabReport(
        run_id=world.manifest.run_id.hex(),
        peers=sum(peer.alive for peer in world.peers),
        versions_certified=certified.versions,
        rounds_void=max((lab.traffic.void_rounds[peer.me] for peer in lab.believed), default=0),
        eval_loss_first=lab.curve[0].eval_loss,
        eval_loss_last=float("nan") if lab.diverged else lab.curve[-1].eval_loss,
        tokens=tally.tokens,
        wall_seconds=used[0],
        inner_steps=tally.steps,
        utilisation=tally.cpu_seconds / (len(os.sched_getaffinity(0)) * used[0]),
        bytes_sent_per_peer=round(lab.traffic.sent.total() / learners),
        bytes_received_per_peer=round(lab.traffic.received.total() / learners),
        agreement=agreement(lab, digests),
        state_digests=digests,
        bans=bans_of(lab),
        events={**world.watcher.told, **lab.faults.counts},
        group_size_mean=certified.members / max(1, certified.versions),
        tokens_certified=certified.tokens,
        minor_certificates=certified.minor,
        steps_per_version=certified.steps / max(1, certified.versions),
        adoption_delay_steps=delays(lab.context.delays_steps),
        seed=config.seed,
        steps=lab.options.steps,
        inner_lr=config.inner.learning_rate,
        device=devices_name((lab.options.device,), lab.options.threads),
        diverged=lab.diverged,
        learner_cpu_seconds=tally.cpu_seconds,
        process_cpu_seconds=used[1],
        optimizer_bytes_per_parameter=bytes_per_parameter(config.inner.optimizer),
        attackers=tuple(lab.context.attacks),
        next_token_accuracy=None if anchors is None else lab.evaluator.judge(anchors, next_token_accuracy),
        trigger_rate=None if anchors is None or not rated else lab.evaluator.judge(anchors, trigger_rate),
        baseline=dict(baseline),
        curve=(*lab.curve, *curves),
        sides=() if lab.parting is None else tuple(lab.parting.points),
    )


def state_digests(lab: Laboratory) -> dict[str, dict[str, tuple[int, str]]]:
    """Return version and digest of each fragment by believed peer, hashed from the tensors now."""
    return {
        peer.me: {
            str(machine.index): (machine.held, lab.context.active[peer.me].anchors.digest(machine.index).hex())
            for machine in peer.engine.machines
        }
        for peer in lab.believed
        if peer.engine is not None
    }


def agreement(lab: Laboratory, digests: Mapping[str, Mapping[str, tuple[int, str]]]) -> bool:
    """Whether all believed peers hold the same certified state of every fragment, and no version ever had two."""
    certified = {
        str(machine.index): (machine.chain.version, machine.chain.state.hex())
        for peer in lab.believed
        if peer.engine is not None
        for machine in peer.engine.machines
    }
    return bool(digests) and all(held == certified for held in digests.values()) and lab.world.watcher.forks == 0
