"""What a pipeline author imports.

Describe work that a language model does and that must be right: a producer makes a typed candidate, validators
judge it, the pipeline's policy decides. Nothing here needs a queue or a database.
"""

from remand_policy import (
    SINGLE_RESPONSE_V1,
    Bounds,
    Disposition,
    Finding,
    Policy,
    Reason,
    RunStatus,
    Status,
    Verdict,
    WorstCase,
)

from .authoring import Accepted, Producer, Rejected, Validator, accept, producer, reject, validator
from .blocks import Groups, Proposal
from .context import Context, Correction, ModelResponse, Produced, RetryRequest, Usage, Validation
from .errors import (
    BadEntry,
    Failure,
    OperationalFailure,
    PipelineError,
    RemandError,
    StructuralFailure,
    Throttled,
)
from .local import arun_local, run_local
from .normal import normal
from .outcome import Outcome, VerdictRecord
from .pipeline import Pipeline, Stage, load, load_registry, load_target
from .registry import Feed, Forbidden, Registry

__version__ = "0.1.0"

__all__ = [
    "SINGLE_RESPONSE_V1",
    "Accepted",
    "BadEntry",
    "Bounds",
    "Context",
    "Correction",
    "Disposition",
    "Failure",
    "Feed",
    "Finding",
    "Forbidden",
    "Groups",
    "ModelResponse",
    "OperationalFailure",
    "Outcome",
    "Pipeline",
    "PipelineError",
    "Policy",
    "Produced",
    "Producer",
    "Proposal",
    "Reason",
    "Registry",
    "Rejected",
    "RemandError",
    "RetryRequest",
    "RunStatus",
    "Stage",
    "Status",
    "StructuralFailure",
    "Throttled",
    "Usage",
    "Validation",
    "Validator",
    "Verdict",
    "VerdictRecord",
    "WorstCase",
    "accept",
    "arun_local",
    "load",
    "load_registry",
    "load_target",
    "normal",
    "producer",
    "reject",
    "run_local",
    "validator",
]
