"""Models to which no field may be appended, and the fields that they have (CONTRIBUTING.md, Changing what is sent).

Peers encode values of these models again after reading them, and hash or compare the bytes. A peer of an earlier minor
version would leave out fields that it does not know, and get other bytes:

* `Manifest` and all models in it give the run id;
* `Outcome` and the models in it are what voters sign, each computing it for itself;
* `Conviction` gives the trust table that an outcome names; `CellYield` the name of a cell;
* `Order` and `Delegation` remove peers: one with an unknown field is refused;
* `Pass` proves admission: one with an unknown field is refused;
* `Evidence`, its exhibits and the statements in it have only one encoding that convicts (`Evidence.parse`);
* `Proof` and the certificates in it make the file of an export (`peer.export.verifier`). Peers also pass on
  certificates that they have read.

Bodies of statements are not here, as they travel as the signed bytes. Nor are notes, records and files that only their
reader uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from coordinator.chain.certificate import Certificate, Contributor, Conviction, Outcome, PartitionOutcome
from coordinator.chain.proof import FragmentProof, Proof
from coordinator.chain.used_invites import InviteUses
from coordinator.run.about import AboutSpec
from coordinator.run.adapter_spec import AdapterSpec, BaseFile, BaseTensor
from coordinator.run.admission_spec import AdmissionSpec
from coordinator.run.data_spec import DataSpec
from coordinator.run.inner_spec import InnerSpec
from coordinator.run.manifest import Manifest, OuterSpec, PaceSpec, RunConfig, TrustSpec
from coordinator.run.model_spec import ModelSpec, TensorEntry
from coordinator.trust.evidence import Evidence, OpenedLeaf
from coordinator.trust.orders import Order
from coordinator.wire.messages import CellYield
from coordinator.wire.openings import OpenedInput, Refutation
from dht.admission import Delegation, Grant, Pass, SignedGrant
from dht.statement import Context, Statement
from dht.wire import Wire

FIXED_FIELDS: Mapping[type[Wire], str] = MappingProxyType(
    {
        Context: "run_id kind fragment version group",
        Statement: "context sender body signature",
        Manifest: (
            "config organiser founders data_digest genesis created_unix_seconds protocol_major protocol_minor_min"
        ),
        RunConfig: "name seed versions model data inner outer pace trust about adapter admission",
        AboutSpec: "title purpose organiser url licence data",
        AdmissionSpec: "mode observers_get_states",
        AdapterSpec: (
            "method rank alpha targets dropout base_precision base base_elements linear_elements give_base base_file"
        ),
        BaseFile: "size_bytes root",
        BaseTensor: "name sha256",
        ModelSpec: (
            "hidden_size layers heads intermediate_size vocabulary family settings source weights tensors package "
            "initial"
        ),
        TensorEntry: "name shape embedding start bound",
        DataSpec: (
            "source context_tokens sequences_per_step evaluation_tokens path subset field tokenizer tokens_max "
            "tokenizer_sha256 order begin_token end_token revision chat_template borders"
        ),
        InnerSpec: (
            "optimizer learning_rate final_rate_share warmup_steps beta1 beta2 weight_decay clip_norm precision "
            "momentum schedule decay_share"
        ),
        OuterSpec: (
            "learning_rate momentum merge contribution_codec result_codec adoption norms adoption_blend error_feedback "
            "merge_package merge_sha256 moment_correction"
        ),
        PaceSpec: (
            "fragments steps_per_version overlap quorum grace_share min_group min_share max_stale round_seconds "
            "presence_seconds presence_lifetime_seconds cells cut_embeddings"
        ),
        TrustSpec: "newcomers_share network_share probation_rounds audit_share score_share",
        Outcome: (
            "fragment version parent attempt minor roster_id roster input_set contributors partitions coin active_set "
            "trust used_invites"
        ),
        InviteUses: "invite peers",
        Contributor: "peer tokens steps cell",
        PartitionOutcome: "reducer root included",
        Conviction: "peer evidence",
        Certificate: "outcome state votes convictions",
        CellYield: "contributors",
        Order: "subject revoked serial reason",
        Delegation: "deputy",
        Grant: "key role uses expires_unix_seconds",
        SignedGrant: "grant signature issuer delegation",
        Pass: "word admission",
        Evidence: "charge statements exhibit",
        OpenedLeaf: "partition index piece path",
        Refutation: "partition turn result leaf inputs piece siblings",
        OpenedInput: "member pieces siblings",
        FragmentProof: "momentum certificates",
        Proof: "fragments",
    }
)
