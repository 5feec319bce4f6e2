"""The messages between a peer and its learner process: length, kind, and one `Wire` model per frame."""

from __future__ import annotations

from pydantic import Field

from coordinator.run.manifest import FRAGMENTS_MAX, RunConfig
from dht.errors import LocalError
from dht.invite import INVITE_BYTES_MAX
from dht.wire import MESSAGE_BYTES_MAX, Wire

LENGTH_BYTES = 4
FRAME_BYTES_MAX = MESSAGE_BYTES_MAX
STEPS_PER_REPORT_MAX = 1024
TEXT_MAX = 2000


class LearnerSettings(Wire):
    """The settings of a learner on this machine; none of them changes the results of the run."""

    device: str = Field("cpu", max_length=256)  # or `auto`, or `cuda:1`
    threads: int = Field(1, ge=1, le=1024)
    niceness: int = Field(0, ge=0, le=19)  # above 0, the network has priority
    step_seconds: float = Field(0.0, ge=0)
    compute_share: float = Field(1.0, gt=0, le=1)
    gpu_memory_share: float = Field(1.0, gt=0, le=1)
    memory_bytes: int = Field(0, ge=0)  # the most RAM its process may use; 0: all that is free
    compiled: bool | None = None  # None: on a GPU
    sharded: bool | None = None  # over several devices; None: if no device has room for the whole model
    corpus: str = Field("", max_length=4096)  # as in `LocalFiles`, like the next two
    tokenizer: str = Field("", max_length=4096)
    cache: str = Field("", max_length=4096)
    loading_threads: int = Field(1, ge=1, le=1024)  # threads that tokenize text before the first step


class Start(Wire):
    """First frame to the learner: what to train, and how."""

    config: RunConfig
    run_key: bytes = Field(max_length=64)
    peer_id: str = Field(max_length=64)
    settings: LearnerSettings = LearnerSettings()
    paused: bool = False
    state_path: str | None = None
    attack: str | None = Field(None, max_length=TEXT_MAX)


class SessionStart(Wire):
    """First frame of a session to its peer: the run to join, or the run to begin with the values in shared memory."""

    invite: str = Field(max_length=2 * INVITE_BYTES_MAX)
    config: RunConfig | None
    data_directory: str = Field(max_length=4096)
    port: int | None = None
    listen_host: str = Field("127.0.0.1", max_length=64)
    announce: tuple[str, ...] = Field((), max_length=16)
    name: str = Field("", max_length=64)
    frozen: bytes = Field(b"", max_length=32)
    track: str = Field("", max_length=4096)


class StartRank(Wire):
    """First frame to any further process of a learner: the peer's Start, and this process's rank and device."""

    start: Start
    rank: int = Field(ge=1)
    size: int = Field(ge=2)
    device: str = Field(max_length=64)
    sharded: bool


class MakeStep(Wire):
    """Make one inner step together with the first process."""


class Rest(Wire):
    """Free the memory that only steps need, together with the first process."""


class _Ticketed(Wire):
    """Base of the commands that are answered with the same ticket, at the next step boundary."""

    ticket: int = Field(ge=0)


class TakeSnapshot(_Ticketed):
    """Copy a fragment into a slot of the shared memory; answered by SnapshotTaken."""

    fragment: int = Field(ge=0, lt=FRAGMENTS_MAX)
    slot: int = Field(ge=0)


class AdoptFragment(_Ticketed):
    """Adopt the fragment in a slot, as `Learner.adopt` does; answered by Done."""

    fragment: int = Field(ge=0, lt=FRAGMENTS_MAX)
    slot: int = Field(ge=0)
    reference: int | None = Field(ge=0)  # slot of the reference that `Learner.adopt` takes
    counted_steps: int = 0  # below zero: steps that are in no version any more
    counted_tokens: int = 0


class Save(_Ticketed):
    """Write the learner's state to a file (safetensors), replacing it; answered by Done."""

    path: str = Field(max_length=4096)


class CertifiedProgress(Wire):
    """The run's certified progress, for the learning rate; in a run that reads in passes also the next window."""

    steps: int = Field(ge=0)
    window: int | None = Field(None, ge=0)


class SetPace(Wire):
    """Limit the pace: least seconds from one step to the next (0: no limit), and the largest share of time in steps."""

    step_seconds: float = Field(ge=0)
    compute_share: float = Field(1.0, gt=0, le=1)


class Threads(Wire):
    """Compute with this many threads from the next step on."""

    threads: int = Field(ge=1, le=1024)


class PauseSteps(Wire):
    """Make no steps until told otherwise; commands are still answered."""

    paused: bool


class Stop(Wire):
    """End after the current step."""


class Preparing(Wire):
    """A sign of life before Ready: what the learner is doing, and the share that is done, if known."""

    doing: str = Field(max_length=TEXT_MAX)
    share: float | None = Field(None, ge=0, le=1)


class Ready(Wire):
    """The learner makes its first step now, unless it is paused."""

    startup_cpu_seconds: float
    parameters: int
    data_digest: bytes
    step: int
    device: str = ""  # a readable name, and how the learner uses the device; empty if a user's loop trains
    use: str = ""
    threads: int = 1
    sequences: int | None = None  # per forward pass on a device; `recompute`: activations are recomputed (`Placement`)
    recompute: bool = False
    data_note: str = Field("", max_length=TEXT_MAX)  # what was left out of this machine's text


class StepEntry(Wire):
    """One inner step."""

    step: int
    loss: float | None  # None for a skipped step, and where a user's loop does not report it
    tokens: int


class Steps(Wire):
    """Steps since the last report; seconds are totals since Ready, `busy_seconds` those spent inside steps.

    `skipped` is the total of steps that changed nothing because a number was not finite.
    """

    entries: tuple[StepEntry, ...] = Field(max_length=STEPS_PER_REPORT_MAX)
    dropped: int = 0
    cpu_seconds: float
    busy_seconds: float
    skipped: int = 0


class SnapshotTaken(Wire):
    """The fragment is in the slot."""

    ticket: int
    steps: int
    tokens: int
    window_first: int
    window_count: int
    at_step: int


class Done(Wire):
    """A command took effect before step `at_step + 1`, and delayed the steps by `seconds`."""

    ticket: int
    at_step: int
    seconds: float = 0.0


class Obeyed(Wire):
    """A command without a ticket took effect before step `at_step + 1`."""

    at_step: int
    progress: CertifiedProgress | None = None
    threads: int | None = None


class Refused(Wire):
    """A command had no effect."""

    ticket: int
    reason: str = Field(max_length=TEXT_MAX)


class Failed(Wire):
    """The learner ends; `usage` is set if the user can do something about it."""

    reason: str = Field(max_length=TEXT_MAX)
    usage: bool = False


Command = TakeSnapshot | AdoptFragment | Save
Message = (
    Start | TakeSnapshot | AdoptFragment | Save | CertifiedProgress | SetPace | PauseSteps | Stop
    | Ready | Steps | SnapshotTaken | Done | Refused | Failed | SessionStart | Threads | Obeyed | Preparing
    | StartRank | MakeStep | Rest
)  # fmt: skip
_KINDS: tuple[type[Message], ...] = (
    Start, TakeSnapshot, AdoptFragment, Save, CertifiedProgress, SetPace, PauseSteps, Stop,
    Ready, Steps, SnapshotTaken, Done, Refused, Failed, SessionStart, Threads, Obeyed, Preparing,
    StartRank, MakeStep, Rest,
)  # fmt: skip


def encode_frame(message: Message) -> bytes:
    """Return one frame: length of the rest (4 bytes), kind (1 byte), canonical encoding."""
    body = message.to_wire()
    return (1 + len(body)).to_bytes(LENGTH_BYTES, "big") + bytes([_KINDS.index(type(message))]) + body


def decode_frame(frame: bytes) -> Message:
    """Decode a frame of `encode_frame`, given without its length.

    Raises LocalError on an unknown kind, PeerError on damage.
    """
    if not frame or frame[0] >= len(_KINDS):
        raise LocalError("the learner and its peer are of different versions")
    return _KINDS[frame[0]].from_wire(frame[1:])


def frame_length(prefix: bytes) -> int:
    """Return the length that a frame's first bytes announce; raises LocalError if it is over the limit."""
    length = int.from_bytes(prefix, "big")
    if length > FRAME_BYTES_MAX:
        raise LocalError(f"a frame of {length} bytes between learner and peer is over the limit")
    return length
