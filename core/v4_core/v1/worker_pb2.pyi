from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WHOLE: _ClassVar[Phase]
    PREFILL: _ClassVar[Phase]
    DECODE: _ClassVar[Phase]

class Finish(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NOT_FINISHED: _ClassVar[Finish]
    STOP: _ClassVar[Finish]
    LENGTH: _ClassVar[Finish]
    MIGRATE: _ClassVar[Finish]

class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNKNOWN_REASON: _ClassVar[Reason]
    INVALID: _ClassVar[Reason]
    OVERLOADED: _ClassVar[Reason]
    DRAINING: _ClassVar[Reason]
    TRANSFER: _ClassVar[Reason]
    DEADLINE: _ClassVar[Reason]
    INTERNAL: _ClassVar[Reason]
WHOLE: Phase
PREFILL: Phase
DECODE: Phase
NOT_FINISHED: Finish
STOP: Finish
LENGTH: Finish
MIGRATE: Finish
UNKNOWN_REASON: Reason
INVALID: Reason
OVERLOADED: Reason
DRAINING: Reason
TRANSFER: Reason
DEADLINE: Reason
INTERNAL: Reason

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerInfo(_message.Message):
    __slots__ = ("role", "instance", "fingerprint", "max_model_len", "vocab_size", "load", "tokenizer")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    role: str
    instance: str
    fingerprint: str
    max_model_len: int
    vocab_size: int
    load: Load
    tokenizer: str
    def __init__(self, role: _Optional[str] = ..., instance: _Optional[str] = ..., fingerprint: _Optional[str] = ..., max_model_len: _Optional[int] = ..., vocab_size: _Optional[int] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., tokenizer: _Optional[str] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("running", "waiting", "queued_tokens", "slots_total", "slots_free", "slots_evictable", "blocks_used", "checkpoint_slots_used", "tails_total", "tails_used", "leases", "draining")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FREE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_EVICTABLE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_USED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_SLOTS_USED_FIELD_NUMBER: _ClassVar[int]
    TAILS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TAILS_USED_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    running: int
    waiting: int
    queued_tokens: int
    slots_total: int
    slots_free: int
    slots_evictable: int
    blocks_used: int
    checkpoint_slots_used: int
    tails_total: int
    tails_used: int
    leases: int
    draining: bool
    def __init__(self, running: _Optional[int] = ..., waiting: _Optional[int] = ..., queued_tokens: _Optional[int] = ..., slots_total: _Optional[int] = ..., slots_free: _Optional[int] = ..., slots_evictable: _Optional[int] = ..., blocks_used: _Optional[int] = ..., checkpoint_slots_used: _Optional[int] = ..., tails_total: _Optional[int] = ..., tails_used: _Optional[int] = ..., leases: _Optional[int] = ..., draining: _Optional[bool] = ...) -> None: ...

class ToWorker(_message.Message):
    __slots__ = ("start", "cancel")
    START_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    start: Start
    cancel: Cancel
    def __init__(self, start: _Optional[_Union[Start, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("request", "attempt")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    request: str
    attempt: int
    def __init__(self, request: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("request", "attempt", "phase", "prompt_ids", "output_ids", "n", "first_choice", "max_tokens", "ignore_eos", "stop_token_ids", "sampling", "tenant", "deadline_ms", "source", "traceparent", "tracestate")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_IDS_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    FIRST_CHOICE_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    request: str
    attempt: int
    phase: Phase
    prompt_ids: bytes
    output_ids: bytes
    n: int
    first_choice: int
    max_tokens: int
    ignore_eos: bool
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    tenant: bytes
    deadline_ms: int
    source: Source
    traceparent: str
    tracestate: str
    def __init__(self, request: _Optional[str] = ..., attempt: _Optional[int] = ..., phase: _Optional[_Union[Phase, str]] = ..., prompt_ids: _Optional[bytes] = ..., output_ids: _Optional[bytes] = ..., n: _Optional[int] = ..., first_choice: _Optional[int] = ..., max_tokens: _Optional[int] = ..., ignore_eos: _Optional[bool] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., tenant: _Optional[bytes] = ..., deadline_ms: _Optional[int] = ..., source: _Optional[_Union[Source, _Mapping]] = ..., traceparent: _Optional[str] = ..., tracestate: _Optional[str] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("address", "lease")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    address: str
    lease: int
    def __init__(self, address: _Optional[str] = ..., lease: _Optional[int] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "logprobs")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    logprobs: int
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., logprobs: _Optional[int] = ...) -> None: ...

class FromWorker(_message.Message):
    __slots__ = ("events", "load")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    load: Load
    def __init__(self, events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., load: _Optional[_Union[Load, _Mapping]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("request", "attempt", "started", "tokens", "adopted", "failed")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ADOPTED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    request: str
    attempt: int
    started: Started
    tokens: Tokens
    adopted: Adopted
    failed: Failed
    def __init__(self, request: _Optional[str] = ..., attempt: _Optional[int] = ..., started: _Optional[_Union[Started, _Mapping]] = ..., tokens: _Optional[_Union[Tokens, _Mapping]] = ..., adopted: _Optional[_Union[Adopted, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("cached_tokens", "lease")
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    cached_tokens: int
    lease: int
    def __init__(self, cached_tokens: _Optional[int] = ..., lease: _Optional[int] = ...) -> None: ...

class Tokens(_message.Message):
    __slots__ = ("choice", "start", "ids", "logprobs", "finish")
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    choice: int
    start: int
    ids: bytes
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    finish: Finish
    def __init__(self, choice: _Optional[int] = ..., start: _Optional[int] = ..., ids: _Optional[bytes] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., finish: _Optional[_Union[Finish, str]] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("logprob", "top_ids", "top_logprobs")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, logprob: _Optional[float] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class Adopted(_message.Message):
    __slots__ = ("bytes", "seconds", "wait_seconds", "blocks_pulled", "blocks_local")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_PULLED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_LOCAL_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    seconds: float
    wait_seconds: float
    blocks_pulled: int
    blocks_local: int
    def __init__(self, bytes: _Optional[int] = ..., seconds: _Optional[float] = ..., wait_seconds: _Optional[float] = ..., blocks_pulled: _Optional[int] = ..., blocks_local: _Optional[int] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("reason", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: Reason
    message: str
    def __init__(self, reason: _Optional[_Union[Reason, str]] = ..., message: _Optional[str] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("request", "attempt", "lease", "fingerprint", "tokens", "have_blocks")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    HAVE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    request: str
    attempt: int
    lease: int
    fingerprint: str
    tokens: int
    have_blocks: int
    def __init__(self, request: _Optional[str] = ..., attempt: _Optional[int] = ..., lease: _Optional[int] = ..., fingerprint: _Optional[str] = ..., tokens: _Optional[int] = ..., have_blocks: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("request", "attempt", "fingerprint", "tokens", "have_blocks", "total_bytes")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    HAVE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    request: str
    attempt: int
    fingerprint: str
    tokens: int
    have_blocks: int
    total_bytes: int
    def __init__(self, request: _Optional[str] = ..., attempt: _Optional[int] = ..., fingerprint: _Optional[str] = ..., tokens: _Optional[int] = ..., have_blocks: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class Final(_message.Message):
    __slots__ = ("tokens", "firsts")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FIRSTS_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    firsts: _containers.RepeatedCompositeFieldContainer[First]
    def __init__(self, tokens: _Optional[int] = ..., firsts: _Optional[_Iterable[_Union[First, _Mapping]]] = ...) -> None: ...

class First(_message.Message):
    __slots__ = ("choice", "id", "logprobs", "finish")
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    choice: int
    id: int
    logprobs: TokenLogprobs
    finish: Finish
    def __init__(self, choice: _Optional[int] = ..., id: _Optional[int] = ..., logprobs: _Optional[_Union[TokenLogprobs, _Mapping]] = ..., finish: _Optional[_Union[Finish, str]] = ...) -> None: ...

class ConfirmRequest(_message.Message):
    __slots__ = ("request", "attempt", "lease")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    request: str
    attempt: int
    lease: int
    def __init__(self, request: _Optional[str] = ..., attempt: _Optional[int] = ..., lease: _Optional[int] = ...) -> None: ...

class ConfirmReply(_message.Message):
    __slots__ = ("held",)
    HELD_FIELD_NUMBER: _ClassVar[int]
    held: bool
    def __init__(self, held: _Optional[bool] = ...) -> None: ...
