"""The decode leg: pulls a leased cache, adopts it, and generates tokens."""

import asyncio
import time

import grpc.aio

from v4_core.blocks import BLOCK_TOKENS
from v4_core.errors import RequestError
from v4_core.geometry import total
from v4_core.token import metadata
from v4_core.v1 import worker_pb2 as pb
from v4_engine.errors import CapacityError
from v4_engine.sequence import Sequence
from v4_kvtransfer.errors import TransferError
from v4_kvtransfer.puller import Pulled, confirm, pull
from v4_worker.leg import Leg
from v4_worker.messages import event_of, firsts_of

_CONFIRM_SECONDS = 10.0


class DecodeLeg(Leg):
    """Reserves memory, pulls and confirms the cache, and lets the engine adopt and continue it.

    Adoption needs three proofs. The pull verifies the checksum of every frame and an equal fingerprint. The prefill
    worker confirms that the lease never lapsed.
    """

    waits = False  # without memory, the leg is refused instead of queued
    first_span = "transfer"
    _pull: "asyncio.Task[None] | None" = None

    async def begin(self) -> None:
        """Reserve memory and start the pull. Fails the leg if there is no memory for the cache."""
        if self.ended:
            return
        if not self.start_message.source.address:
            self.fail(pb.INVALID, "a leg of phase DECODE needs the source of its cache")
            return
        try:
            sequence = await self.context.engine.call(lambda engine: engine.reserve(self.request))
        except (RequestError, CapacityError) as error:
            self.fail(pb.INVALID, str(error))
            return
        if self.ended:
            self.free()
        elif sequence is None:
            self.context.metrics.refused()
            self.fail(pb.OVERLOADED, "this worker has no memory for the cache now: try again later")
        else:
            self._pull = self.run(self._transfer(sequence))

    async def _transfer(self, sequence: Sequence) -> None:
        context, request, local = self.context, self.request, sequence.named
        try:
            with context.metrics.transferring():
                pulled = await self._pulled(sequence)
                firsts = firsts_of(pulled.final, request)
                await self._confirmed()
        except (TransferError, RequestError) as error:
            self.fail(pb.TRANSFER, str(error))
            return
        context.metrics.adopted(pulled, local * total(context.memory.geometry.block_spans))
        adopted = self._adopted(pulled, local)
        self.stream.put(event_of(request, adopted=adopted))
        self._record_transfer(adopted)
        context.engine.post(lambda engine: engine.adopt(request.key, firsts))
        for choice, (_, finish) in firsts.items():
            self.mark_sent(choice, len(request.output), finish is not None)

    async def _pulled(self, sequence: Sequence) -> Pulled:
        context, tokens, tail = self.context, self.request.tokens, sequence.tail
        assert tail is not None
        name, attempt = self.key[:2]
        return await pull(
            self._channel(),
            pb.PullRequest(
                request=name,
                attempt=attempt,
                lease=self.start_message.source.lease,
                fingerprint=context.fingerprint,
                tokens=tokens,
                have_blocks=sequence.named,
            ),
            context.memory,
            sequence.slots[: context.memory.geometry.slots(tokens)],
            tail,
            self._block_arrived,
            context.config.pull_timeout_seconds,
            metadata(context.token),
        )

    async def _confirmed(self) -> None:
        name, attempt = self.key[:2]
        proof = pb.ConfirmRequest(request=name, attempt=attempt, lease=self.start_message.source.lease)
        await confirm(self._channel(), proof, _CONFIRM_SECONDS, metadata(self.context.token))

    def _channel(self) -> grpc.aio.Channel:
        return self.context.channels.to(self.start_message.source.address)

    def _adopted(self, pulled: Pulled, local: int) -> pb.Adopted:
        return pb.Adopted(
            bytes=pulled.bytes,
            seconds=pulled.seconds,
            wait_seconds=pulled.wait_seconds,
            blocks_pulled=self.request.tokens // BLOCK_TOKENS - local,
            blocks_local=local,
        )

    def _record_transfer(self, adopted: pb.Adopted) -> None:
        names = ("bytes", "wait_seconds", "blocks_pulled", "blocks_local")
        self.spans.annotate({"source": self.start_message.source.address, **{n: getattr(adopted, n) for n in names}})
        self.spans.enter("decode", time.monotonic())

    def _block_arrived(self, block: int) -> None:
        self.context.engine.post(lambda engine: engine.block_arrived(self.key, block))

    def free(self) -> None:
        """Cancel the pull, and free the memory only after nothing can write to it any more."""
        if self._pull is None or self._pull.done():
            super().free()
            return
        if self._pull is not asyncio.current_task():
            self._pull.cancel()
            self._pull.add_done_callback(lambda _: super(DecodeLeg, self).free())
        else:
            super().free()
