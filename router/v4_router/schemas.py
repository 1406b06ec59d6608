"""The bodies of `/v1/completions` and `/v1/chat/completions`, and how a body is refused.

Every field is either served, or known and refused unless it says nothing ("not supported yet"), or unknown and refused
with the nearest known name: no field is silently ignored. `user` and `metadata` change nothing in an answer by their
definition. Values are taken strictly: no string is a number.
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

# Fields of the OpenAI and vLLM interfaces that are not served yet, each with the values that ask for nothing.
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
    """What a stream carries beside tokens."""

    include_usage: bool = False


class ChatTemplateKwargs(_Strict):
    """How a chat is encoded; `thinking` and `enable_thinking` are two spellings of one switch."""

    thinking: bool | None = None
    enable_thinking: bool | None = None
    drop_thinking: bool = True


def _temperature(value: float) -> float:
    """Logits are divided by it: what lies between would overflow them."""
    if 0 < value < 0.001:
        raise PydanticCustomError("temperature", "must be 0, for the likeliest token, or at least 0.001")
    return value


class _Body(_Strict):
    """What both interfaces share."""

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
    """One entry per prompt. By hand, since a union of lists would be tried member by member on 100k ids."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("prompt", "must be a text, token ids, or a list of either, and not empty")
    kinds = set(map(type, value))
    if kinds == {int}:
        return [_packed(value)]
    if kinds == {list} and all(set(map(type, ids)) == {int} for ids in value):
        return [_packed(ids) for ids in value]
    if kinds == {str}:
        return list(value)
    raise PydanticCustomError("prompt", "its list must hold texts, or token ids, or lists of token ids, none empty")


def _packed(ids: list[int]) -> bytes:
    try:
        return pack_ids(ids)
    except OverflowError:
        raise PydanticCustomError("prompt", "a token id is negative or beyond any vocabulary") from None


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


# Objects whose keys are of the client's making: what is wrong in them is told of the whole.
_NAMED_BY_CLIENTS = (("logit_bias",), ("metadata",))

_B = TypeVar("_B", bound=_Body)


def parse(model: type[_B], raw: bytes) -> _B:
    """The validated body. Raises BadRequest that names the first field at fault."""
    try:
        data = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise BadRequest("the body must be a JSON object")
    data = _served(data, model, _LATER, "")
    messages = data.get("messages")
    if model is ChatBody and isinstance(messages, list):
        data["messages"] = [_served_message(m, f"messages[{i}]") for i, m in enumerate(messages)]
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _refusal(error) from None


def _served_message(message: Any, where: str) -> Any:
    if not isinstance(message, dict):
        return message
    if message.get("role") in _LATER_ROLES:
        raise BadRequest(f"{where}.role {message['role']!r} is not supported yet", f"{where}.role")
    return _served(message, MessageBody, _LATER_IN_MESSAGE, f"{where}.")


def _served(data: Mapping[str, Any], model: type[BaseModel], later: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields that are served. Raises BadRequest on any other that asks for something."""
    served = {}
    for key, value in data.items():
        if key in model.model_fields:
            served[key] = value
        elif key not in later:
            message = unknown_key_message("field", key[:100], model.model_fields)
            raise UnknownField(f"{message} (in {where[:-1]})" if where else message, f"{where}{key[:100]}")
        elif value is not None and not any(_same(value, neutral) for neutral in later[key]):
            raise BadRequest(f"{where}{key} is not supported yet: leave it out", f"{where}{key}")
    return served


def _same(value: Any, neutral: Any) -> bool:
    return type(value) is type(neutral) and value == neutral


def _refusal(error: ValidationError) -> BadRequest:
    """The most telling of a failed validation's complaints, in the words of the body."""
    complaints = error.errors(include_url=False, include_context=False, include_input=False)
    first = max(complaints, key=lambda c: (len(c["loc"]), not c["type"].endswith("_type")))
    path = ""
    for step in first["loc"][: 1 if first["loc"][:1] in _NAMED_BY_CLIENTS else None]:
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
