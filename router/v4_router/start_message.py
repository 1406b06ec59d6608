"""The message that starts a leg on its worker. Pure."""

from v4_core.v1 import worker_pb2 as pb
from v4_router.actions import StartLeg
from v4_router.choice_group import ChoiceGroup


def start_message(group: ChoiceGroup, action: StartLeg, seconds_left: float) -> pb.Start:
    """`seconds_left`: until the request's deadline."""
    request, leg = group.prompt.request, action.leg
    start = pb.Start(
        request=leg.request,
        attempt=leg.attempt,
        phase=leg.phase,
        prompt_ids=request.prompt,
        output_ids=group.output_ids,
        n=len(group.choices),
        first_choice=group.choices[0],
        max_tokens=request.max_tokens,
        ignore_eos=request.ignore_eos,
        stop_token_ids=request.stop_token_ids,
        sampling=request.sampling.to_proto(),
        tenant=request.tenant,
        deadline_ms=max(1, int(1000 * seconds_left)),
        traceparent=request.trace.traceparent,
        tracestate=request.trace.tracestate,
    )
    if action.source is not None:
        start.source.address = action.source.worker
        start.source.lease = action.lease
    return start
