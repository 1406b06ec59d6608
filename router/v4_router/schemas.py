"""The bodies of `/v1/completions` and `/v1/chat/completions`, and their validation.

No field is silently ignored. A field is supported; or it is known but not supported yet, and refused unless its value
asks for nothing; or it is unknown, and refused with the nearest known name. `user` and `metadata` are accepted without
effect, as their definition allows. Validation is strict: a string is not accepted as a number.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError, from_json

from v4_core.blocks import pack_ids
from v4_core.errors import unknown_key_message
from v4_router.errors import BadRequest, UnknownField

_Uint32 = Annotated[int, Field(ge=0, lt=1 << 32)]
_NonEmpty = Annotated[str, Field(min_length=1)]

# Fields of the OpenAI and vLLM APIs that are not supported yet, each with the values that ask for nothing.
_LATER: dict[str, tuple[Any, ...]] = {
    "audio": (), "best_of": (1,), "echo": (False,), "function_call": ("none",), "functions": ([],),
    "guided_json": (), "logit_processors": ([],), "logits_processors": ([],), "min_tokens": (0,),
    "modalities": (["text"],), "parallel_tool_calls": (True, False), "prediction": (), "prompt_logprobs": (),
    "reasoning_effort": (), "response_format": ({"type": "text"},), "service_tier": ("auto", "default"),
    "store": (False,), "structured_outputs": (), "suffix": ("",), "tool_choice": ("none", "auto"), "tools": ([],),
    "verbosity": (), "web_search_options": (),
}  # fmt: skip
_LATER_IN_MESSAGE: dict[str, tuple[Any, ...]] = {
    "annotations": ([],), "audio": (), "function_call": (), "name": (), "refusal": (), "tool_call_id": (),
    "tool_calls": ([],),
}  # fmt: skip
_LATER_ROLES = ("developer", "tool", "function", "latest_reminder")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class StreamOptions(_Strict):
    """What a stream contains besides tokens."""

    include_usage: bool = False


class ChatTemplateKwargs(_Strict):
    """How a chat is encoded. `thinking` and `enable_thinking` are two names of the same option."""

    thinking: bool | None = None
    enable_thinking: bool | None = None
    drop_thinking: bool = True


def _temperature(value: float) -> float:
    """Refuses temperatures so near 0 that logits divided by them overflow."""
    if 0 < value < 0.001:
        raise PydanticCustomError("temperature", "must be 0 for greedy decoding, or at least 0.001")
    return value


class _Body(_Strict):
    """The fields that both routes have."""

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2), AfterValidator(_temperature)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 32)] | None = None  # -1 and 0 = off
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: _NonEmpty | Annotated[list[_NonEmpty], Field(max_length=16)] | None = None
    stop_token_ids: Annotated[list[_Uint32], Field(max_length=64)] | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None


def _prompts(value: Any) -> list[str | bytes]:
    """Returns one entry per prompt.

    Not left to pydantic, which would try each type of a union on each of, say, 100,000 token ids.
    """
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("prompt", "must be a string, a list of token ids, or a non-empty list of either")
    kinds = set(map(type, value))
    if kinds == {int}:
        return [_packed(value)]
    if kinds == {list} and all(set(map(type, ids)) == {int} for ids in value):
        return [_packed(ids) for ids in value]
    if kinds == {str}:
        return list(value)
    raise PydanticCustomError(
        "prompt", "a list must contain only strings, only token ids, or only non-empty lists of token ids"
    )


def _packed(ids: list[int]) -> bytes:
    try:
        return pack_ids(ids)
    except OverflowError:
        raise PydanticCustomError("prompt", "a token id is negative or does not fit in 32 bits") from None


class CompletionBody(_Body):
    """Body of `/v1/completions`."""

    prompt: Annotated[list[str | bytes], BeforeValidator(_prompts)]  # one per prompt: text, or packed uint32 ids
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


class TextPart(_Strict):
    """One part of a message's content."""

    type: Literal["text"]
    text: str


class MessageBody(_Strict):
    """One turn of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]
    reasoning_content: str | None = None


class ChatBody(_Body):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[list[MessageBody], Field(fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    chat_template_kwargs: ChatTemplateKwargs | None = None


# Objects whose keys are chosen by the client: an error names the object, not the key.
_CLIENT_KEYS = (("logit_bias",), ("metadata",))

_B = TypeVar("_B", bound=_Body)


def parse(model: type[_B], raw: bytes) -> _B:
    """Returns the validated body. Raises BadRequest, which names a field at fault."""
    try:
        data = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise BadRequest("the body must be a JSON object")
    data = _supported(data, model, _LATER, "")
    messages = data.get("messages")
    if model is ChatBody and isinstance(messages, list):
        data["messages"] = [_supported_message(m, f"messages[{i}]") for i, m in enumerate(messages)]
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _bad_request(error) from None


def _supported_message(message: Any, where: str) -> Any:
    if not isinstance(message, dict):
        return message
    if message.get("role") in _LATER_ROLES:
        raise BadRequest(f"{where}.role {message['role']!r} is not supported yet", f"{where}.role")
    return _supported(message, MessageBody, _LATER_IN_MESSAGE, f"{where}.")


def _supported(data: Mapping[str, Any], model: type[BaseModel], later: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns the supported fields. Raises BadRequest if another field is unknown or asks for something.

    `later`: for each field that is not supported yet, the values that ask for nothing. `where`: prefix of field paths.
    """
    supported = {}
    for key, value in data.items():
        if key in model.model_fields:
            supported[key] = value
        elif key not in later:
            message = unknown_key_message("field", key[:100], model.model_fields)
            raise UnknownField(f"{message} (in {where[:-1]})" if where else message, f"{where}{key[:100]}")
        elif value is not None and not any(_same(value, neutral) for neutral in later[key]):
            raise BadRequest(f"{where}{key} is not supported yet: leave it out", f"{where}{key}")
    return supported


def _same(value: Any, neutral: Any) -> bool:
    return type(value) is type(neutral) and value == neutral


def _bad_request(error: ValidationError) -> BadRequest:
    """Returns the most specific error of a failed validation, with the path of its field in the body."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    first = max(errors, key=lambda e: (len(e["loc"]), not e["type"].endswith("_type")))
    path = ""
    for step in first["loc"][: 1 if first["loc"][:1] in _CLIENT_KEYS else None]:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step.isidentifier() and not step.startswith(("constrained", "TextPart")):
            path += f".{step}" if path else step
    path = path.removesuffix(".str").removesuffix(".list") or "body"
    if first["type"] == "extra_forbidden":
        known: dict[str, type[BaseModel]] = {
            "stream_options": StreamOptions,
            "chat_template_kwargs": ChatTemplateKwargs,
        }
        owner, _, key = path.rpartition(".")
        message = unknown_key_message("field", key, known.get(owner, TextPart).model_fields)
        return UnknownField(f"{path}: {message}", path)
    return BadRequest(f"{path}: {first['msg']}", path)
