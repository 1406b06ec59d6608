"""Transitions of a group of choices by the tokens of its legs; part of the state machine in `advance.py`.

Emitted tokens never change: every message says where its tokens start, tokens that are known already are dropped, and a
gap is an internal error.
"""

from v4_core.blocks import unpack_ids
from v4_core.v1 import worker_pb2 as pb
from v4_router.actions import EmitTokens
from v4_router.choice_group import Choice, ChoiceGroup, RemoteLeg
from v4_router.errors import InternalError
from v4_router.group_ends import Actions, GivenUp, leave_if_finished, split

_FINISH = {pb.STOP: "stop", pb.LENGTH: "length"}


def on_tokens(group: ChoiceGroup, leg: RemoteLeg, tokens: pb.Tokens) -> Actions:
    """Adds the new tokens of a message to their choice. Raises GivenUp if the worker broke the protocol."""
    choices = group.prompt.choices
    if tokens.choice >= len(choices):
        raise GivenUp(InternalError(f"a worker sent tokens of choice {tokens.choice}, which was not requested"))
    choice = choices[tokens.choice]
    if choice.finished or tokens.choice not in group.choices:
        return
    known = len(choice.ids) - tokens.start
    if known < 0:
        _hold_early(group, choice, leg, tokens)
        return
    ids, logprobs = unpack_ids(tokens.ids), list(tokens.logprobs)
    if group.prompt.request.sampling.logprobs is not None and len(logprobs) != len(ids):
        raise GivenUp(InternalError("a worker sent tokens without their log-probabilities"))
    if known > len(ids) or (known == len(ids) and not tokens.finish):
        return
    yield from _add(group, leg, tokens, ids[known:], logprobs[known:])
    early, choice.early = choice.early, []
    for later in early:
        if group.decode is not None:
            yield from on_tokens(group, group.decode, later)


def _hold_early(group: ChoiceGroup, choice: Choice, leg: RemoteLeg, tokens: pb.Tokens) -> None:
    """Keeps decode's tokens until prefill's first token is received: the two streams are not ordered."""
    if leg.phase != pb.DECODE or len(choice.ids) != group.base:
        raise GivenUp(InternalError(f"tokens {len(choice.ids)} to {tokens.start} of a choice are missing"))
    choice.early.append(tokens)


def _add(
    group: ChoiceGroup, leg: RemoteLeg, tokens: pb.Tokens, ids: list[int], logprobs: list[pb.TokenLogprobs]
) -> Actions:
    choice = group.prompt.choices[tokens.choice]
    choice.ids += ids
    finish = _FINISH.get(tokens.finish)
    if ids or finish:
        yield EmitTokens(leg, tokens.choice, ids, logprobs, finish)
    if ids and leg.phase != pb.PREFILL:
        group.progressed()
    if tokens.finish == pb.MIGRATE:
        yield from _give_back(group, leg, tokens.choice)
    elif tokens.finish:
        choice.finished = choice.ended = True
    if tokens.finish:
        yield from leave_if_finished(group)


def _give_back(group: ChoiceGroup, leg: RemoteLeg, choice: int) -> Actions:
    """The worker gave a choice back: the choice continues alone, on another worker."""
    group.choices = tuple(c for c in group.choices if c != choice)
    group.refused.add(leg.worker)
    yield from split(group, choice)
    group.refused.discard(leg.worker)
