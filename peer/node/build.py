"""Builds the parts of a peer before it runs: key, folder, manifest, the driver around its protocol core, its start."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Set
from dataclasses import replace

import structlog
import torch

from coordinator.chain.chain import Chain
from coordinator.chain.waypoint import knows
from coordinator.core.context import Core
from coordinator.engine.audit import ROUNDS_KEPT
from coordinator.engine.engine import Engine
from coordinator.run.admission_spec import AdmissionSpec
from coordinator.run.manifest import MANIFEST_BYTES_MAX, Manifest, RunConfig
from dht.door import AdmissionPolicy, Door
from dht.errors import LocalError, NetworkError, PeerError, UsageError
from dht.identity import Identity, PeerId, Signer
from dht.invite import Invite
from dht.statement import digest_of
from dht.units import GIGABYTE_BYTES
from peer.data.token_files import TokenData
from peer.data.windows import load_tokens
from peer.export.regular import check_run
from peer.learner.handover import session_description
from peer.learner.memory_estimate import available_bytes, check_memory, host_bytes
from peer.machine.clock import unix_seconds
from peer.machine.fault_points import Fault
from peer.machine.limits import Limits
from peer.machine.throttle import Throttle
from peer.model.description import OWN_DATA, Description, describe, is_same_run
from peer.net.network import Network
from peer.net.transport import Transport
from peer.node.daemon_options import daemon_config
from peer.node.options import NodeOptions
from peer.numerics.codec import CODECS
from peer.numerics.core_pool import Cores, one_core_each
from peer.numerics.fragments import FLOAT_BYTES
from peer.numerics.golden import self_check
from peer.numerics.merge_plugin import merge_rule
from peer.numerics.plugins import check_packages
from peer.rounds.counters import RunCounters
from peer.rounds.driver import RoundDriver
from peer.rounds.tape_parts import PART_NAME
from peer.rounds.tape_recorder import TapeRecorder
from peer.rounds.tensor_worker import TensorWorker
from peer.storage.anchors import Anchors, genesis_states
from peer.storage.blobs import BlobStore
from peer.storage.earlier_run import earlier_run, new_run_line
from peer.storage.genesis_file import digests_of, save_genesis
from peer.storage.run_directory import RunDirectory, RunState, known_manifests
from peer.sync.bootstrap import fetch_chains
from peer.sync.introduction import Introduction, waypoint_of

log = structlog.get_logger(__name__)

BLOB_BYTES_MIN = 8 << 20  # for a small model, enough for some thirty versions
GIVEN_OF_DAY = 0.25  # share of the owner's daily upload: available at once, and refilled in the course of a day
ANSWERED_OF_GIVEN = 0.2  # share of that for all other requests of peers that are in no certificate
GIVEN_SHARE = 0.5  # of the owner's upload limit, at most, for newcomers; rounds need the rest
BLOB_FRAGMENTS = 8  # the blobs of a round in flight take at most this many copies of the largest fragment
BLOB_COPIES = 3  # usual number of encoded copies: our contribution, our inputs to reduce, and the results


def prepare(options: NodeOptions) -> Identity:
    """Check that this machine computes what others compute, and load or create its key; raises MusterError."""
    torch.set_num_threads(1)  # the learner has its own process; here everything is small or waits
    difference = self_check()
    if difference is not None:
        raise LocalError(f"{difference}; it cannot take part")
    try:
        options.data_directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{options.data_directory} cannot be used: {error.strerror}; choose another --data") from None
    return Identity.load_or_create(options.identity_path)


def describe_here(config: RunConfig, options: NodeOptions) -> Description:
    """Describe the run as in its manifest; raises UsageError if it is impossible or does not fit this machine."""
    if options.session is not None:
        return session_description(config, options.session)
    described = describe(config, available_bytes("cpu"), options.files.base)
    if described.note:
        options.tell(described.note, None)
    fixed = described.config
    if not fixed.model.is_own:
        check_memory(host_bytes(fixed), available_bytes("cpu"))
    return described


def check_plugins(config: RunConfig) -> None:
    """Raise UsageError if a plugin of this run is missing, or merges to other bytes here than at the run's host."""
    check_packages(config)
    merge_rule(config.outer)


def load_described(described: Description, options: NodeOptions) -> TokenData | None:
    """Load the data for evaluations, with the host's own files; None where the peers bring model and data."""
    config = described.config
    if config.data.source == "own":
        return None
    data = load_tokens(config.data, config.model.vocabulary, options.files, loading=options.loading)
    if data.note:
        log.info("own_text", note=data.note)
        options.tell(f"of your text: {data.note}", None)
    return data


def make_run(described: Description, options: NodeOptions, me: PeerId) -> tuple[Manifest, TokenData | None]:
    """Return the manifest of the run that we begin or go on hosting, and the data to evaluate it on, if any."""
    data = load_described(described, options)
    digest = own_data_digest(options) if data is None else data.digest
    manifest = make_manifest(described, digest, options, me)
    if options.export is not None:
        check_run(options.export.folder, manifest.run_id)
    return manifest, data


def own_data_digest(options: NodeOptions) -> bytes:
    """Return the data digest of a run whose peers bring the data: that of the model's frozen part, if there is one."""
    frozen = b"" if options.session is None else options.session.frozen
    return digest_of(OWN_DATA, frozen) if frozen else OWN_DATA


def check_frozen(manifest: Manifest, options: NodeOptions) -> None:
    """Raise UsageError if the session's module has another frozen part than the run's."""
    if options.session is None or manifest.data_digest in (own_data_digest(options), OWN_DATA):
        return  # a run of `muster host` knows no frozen part, and so accepts any
    raise UsageError(
        "the parameters of your model that are not trained have other values, types or names than the run's; load the "
        "base that its organiser names"
    )


def make_manifest(described: Description, data_digest: bytes, options: NodeOptions, me: PeerId) -> Manifest:
    """Make the manifest of a new run, or return the earlier one if this data directory already hosts the same run.

    Values of version 0 that other peers cannot draw are kept in the run's folder.
    """
    described.config.check_adoption("the run's description")
    config, states = described.config, genesis_states(described.config, described.values)
    genesis, all_known = digests_of(states), list(known_manifests(options.data_directory))
    for known in all_known:
        if (known.organiser, known.genesis) == (me, genesis) and is_same_run(known.config, config):
            check_same_text(known, data_digest)
            return known
    check_founders(config, set(options.founders) - {me})
    if (earlier := earlier_run(all_known, config, me)) is not None:
        options.tell(new_run_line(earlier, config, options.data_directory), None)
    manifest = Manifest(
        config=config if config.admission is not None else config.model_copy(update={"admission": AdmissionSpec()}),
        organiser=me,
        founders=options.founders or (me,),
        data_digest=data_digest,
        genesis=genesis,
        created_unix_seconds=int(unix_seconds()),
    )
    _check_readable(manifest)
    if described.values is not None:
        save_genesis(RunDirectory(options.data_directory, manifest.run_id).path, states)
    return manifest


def _check_readable(manifest: Manifest) -> None:
    """Raise UsageError unless other peers can read this manifest: parts of it were replaced without validation."""
    try:
        Manifest.from_wire(manifest.to_wire(), MANIFEST_BYTES_MAX)
    except PeerError as error:
        raise UsageError(
            f"other peers could not read the manifest of this run ({error}); choose a model or base of fewer tensors, "
            "or shorten the run file"
        ) from None


def check_same_text(manifest: Manifest, data_digest: bytes) -> None:
    """Raise UsageError if a run would continue with another text than it began with: its losses could not be compared.

    The text of Python's standard library changes with every update, which is no reason to end a run.
    """
    data = manifest.config.data
    if data_digest == manifest.data_digest or data.source in ("stdlib", "own"):
        return
    before = f'data.revision = "{data.revision}"' if data.source == "hub" else "bring back the files as they were"
    raise UsageError(
        f"your text has changed since the run {manifest.run_id.hex()[:12]} began with it: {before}, or begin another "
        "run with another name or seed in the run file"
    )


def check_founders(config: RunConfig, training: Set[str]) -> None:
    """Raise UsageError if a run cannot begin with these founders, because newcomers have little weight at first."""
    needed = config.pace.min_group
    if config.trust.bounds_newcomers and len(training) < needed:
        raise UsageError(
            f"a run with these [trust] keys begins with founders that train, and {len(training)} of at least {needed} "
            "(pace.min_group) are named; name the keys of your first learners, each with --founder"
        )


async def begin_at_invite(
    engine: Engine, invite: Invite | None, transport: Transport, others: Set[PeerId] = frozenset()
) -> None:
    """Begin at the heads of the invite unless our own chains contain them; raises NetworkError for a newcomer.

    Asks the peers of the invite, and `others` of the run that we have met. A lineage without these heads is refused,
    because it could be made with old keys (design §8). A returning peer goes on with what it holds if no peer keeps
    these heads any more.
    """
    own, waypoint = engine.chains, None if invite is None else waypoint_of(invite)
    if invite is None or waypoint is None or knows(own, waypoint):
        return
    if knows(own, waypoint) is None and all(chain.version >= waypoint.version for chain in own):
        return  # these heads are so much older than what we hold that we no longer keep them
    introduction = Introduction(waypoint, [Chain(chain.rules, chain.fragment, chain.genesis) for chain in own])
    try:
        chains = await fetch_chains(transport, invite.peers | others, introduction)
    except NetworkError as error:
        if not any(chain.version for chain in own):
            raise
        log.warning("heads_not_found", reason=str(error))
        return
    engine.begin_at(chains, asyncio.get_running_loop().time())


def read_invite(text: str, options: NodeOptions) -> Invite:
    """Parse this invite; raises UsageError, also if the options of a trial are not allowed in its run."""
    invite = Invite.parse(text)
    trials = (("--attack", options.trial.attack), ("--skew-file", options.trial.skew_file))
    if option := next((name for name, value in trials if value is not None), None):
        from peer.attacks.peer import check_among_ourselves

        check_among_ourselves(invite, option, options.trial.network)
    return invite


def core_kind(options: NodeOptions, manifest: Manifest, signer: Signer) -> Callable[..., Core]:
    """Return the class or factory of this peer's protocol core; raises UsageError if there is no such attack."""
    if options.trial.attack is None:
        return Core
    from peer.attacks.peer import core_kind as hostile_kind

    return hostile_kind(options.trial.attack, manifest, signer)


def _work(
    core: Core, anchors: Anchors, blobs: BlobStore, options: NodeOptions
) -> tuple[TensorWorker, Callable[..., RoundDriver]]:
    """Return the tensor worker of this peer, and the factory of its driver."""
    worker = one_core_each(1, "tensors")
    kind: Callable[..., RoundDriver] = RoundDriver
    if options.trial.attack is None:
        work = TensorWorker(core.manifest.config, anchors, blobs, worker)
    else:
        from peer.attacks.peer import hostile_parts

        work, kind = hostile_parts(options.trial.attack, core, anchors, blobs, worker)
    work.cores = Cores(options.limits.threads(options.threads))
    return work, kind


def build_driver(
    core: Core, held: RunState, transport: Transport, directory: RunDirectory, options: NodeOptions
) -> RoundDriver:
    """Build the protocol core with its shell, starting from the saved state."""
    config = core.manifest.config
    blobs = _blob_store(config, max(layout.elements for layout in held.anchors.layouts))
    work, make_driver = _work(core, held.anchors, blobs, options)
    driver = make_driver(
        engine=Engine(core, held.chains, held.held, asyncio.get_running_loop().time()),
        transport=transport,
        work=work,
        anchors=held.anchors,
        blobs=blobs,
        votes=directory.vote_log,
        counters=RunCounters(config.pace.fragments),
        fault=None if options.trial.fault is None else Fault.parse(options.trial.fault, options.data_directory),
    )
    limit_serving(options.limits, driver)
    core.proof_checker = work.proof_checker
    if options.trial.taped:
        driver.tape = TapeRecorder.begin(options.data_directory / PART_NAME, core.manifest, core.me, options.files)
    if held.learner_state is not None:
        driver.local_work.doubt(set(range(config.pace.fragments)))
    return driver


def _blob_store(config: RunConfig, largest: int) -> BlobStore:
    """Create the store for a largest fragment of this many elements."""
    codecs = (config.outer.contribution_codec, config.outer.result_codec)
    round_bytes = BLOB_COPIES * max(CODECS[codec].encoded_bytes(largest) for codec in codecs)
    over = config.pace.overlap + (ROUNDS_KEPT if config.trust.audit_share else 0)  # others may arrive late
    most_bytes = BLOB_FRAGMENTS * FLOAT_BYTES * largest * config.pace.overlap
    return BlobStore(max(BLOB_BYTES_MIN, most_bytes), max(BLOB_BYTES_MIN, over * round_bytes))


def is_known(engine: Engine, peer: str) -> bool:
    """Whether this key is a founder's or a member's of recently certified groups, and so no stranger's."""
    return any(peer in chain.rules.founders or peer in chain.active_set() for chain in engine.chains)


def limit_serving(limits: Limits, driver: RoundDriver) -> None:
    """Bound what newcomers fetch and strangers ask, so that rounds have room within the owner's limits."""
    of_day = GIVEN_OF_DAY * limits.upload_gigabytes_per_day * GIGABYTE_BYTES or math.inf
    driver.engine.core.answering.strangers.give_of_day(of_day * ANSWERED_OF_GIVEN)
    driver.requests.server.give_at_most(GIVEN_SHARE * limits.upload_bytes_per_second, of_day)


async def open_network(
    options: NodeOptions,
    run_id: bytes,
    invite: Invite | None,
    addresses: Callable[[PeerId], list[str]],
    policy: AdmissionPolicy | None = None,
    fresh_key: bool = False,
) -> Network:
    """Open this peer's endpoint in a run's network by an invite; raises UsageError, NetworkError or LocalError."""
    door = Door() if invite is None else Door(invite.pass_for)
    door.policy = policy
    met = () if invite is None else invite.addresses
    daemon = daemon_config(options, met, RunDirectory(options.data_directory, run_id).address_book, door)
    daemon = replace(daemon, fresh_key=fresh_key)
    return await Network.open(daemon, run_id, addresses, throttle_of(options), options.clock)


def throttle_of(options: NodeOptions) -> Throttle:
    """Return a throttle with the owner's rates in both directions."""
    return Throttle(options.limits.upload_bytes_per_second, options.limits.download_bytes_per_second)
