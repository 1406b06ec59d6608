"""A leased cache comes in by transfer and is adopted; a stream of tokens goes out."""

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
from v4_worker.messages import event, firsts_of

_CONFIRM_SECONDS = 10.0


class DecodeLeg(Leg):
    """Reserve, pull, confirm, adopt; then the engine's tokens.

    Adoption needs three proofs: every frame's checksum and an equal fingerprint (the pull ends well only with both),
    and prefill's word that the lease never lapsed.
    """

    waits = False  # it is refused rather than queued
    first_phase = "transfer"
    _pull: "asyncio.Task[None] | None" = None

    async def begin(self) -> None:
        """Reserve memory, or refuse; then pull."""
        if self.ended:
            return
        if not self.start_message.source.address:
            self.fail(pb.INVALID, "a DECODE leg needs the source of its cache")
            return
        try:
            sequence = await self.worker.engine.call(lambda engine: engine.reserve(self.request))
        except (RequestError, CapacityError) as error:
            self.fail(pb.INVALID, str(error))
            return
        if self.ended:
            self.free()
        elif sequence is None:
            self.worker.metrics.refused()
            waiting = self.worker.load.waiting
            self.fail(pb.OVERLOADED, "no memory for this cache here now: try again later", waiting)
        else:
            self._pull = self.run(self._transfer(sequence))

    async def _transfer(self, sequence: Sequence) -> None:
        worker, request, local = self.worker, self.request, sequence.named
        try:
            with worker.metrics.transferring():
                pulled = await self._pulled(sequence)
                firsts = firsts_of(pulled.final, request)
                await self._confirmed()
        except (TransferError, RequestError) as error:
            self.fail(pb.TRANSFER, str(error))
            return
        worker.transferred_bytes += pulled.bytes
        worker.metrics.adopted(pulled, local * total(worker.memory.geometry.block_spans))
        adopted = self._adopted(pulled, local)
        self.stream.put(event(request, adopted=adopted))
        self._arrived_here(adopted)
        worker.engine.post(lambda engine: engine.adopt(request.key, firsts))
        for choice, (_, finish) in firsts.items():
            self.passed(choice, len(request.output), finish is not None)

    async def _pulled(self, sequence: Sequence) -> Pulled:
        worker, tokens, tail = self.worker, self.request.tokens, sequence.tail
        assert tail is not None
        name, attempt = self.key[:2]
        return await pull(
            self._channel(),
            pb.PullRequest(
                request=name,
                attempt=attempt,
                lease=self.start_message.source.lease,
                fingerprint=worker.fingerprint,
                tokens=tokens,
                have_blocks=sequence.named,
            ),
            worker.memory,
            sequence.slots[: worker.memory.geometry.slots(tokens)],
            tail,
            self._block_arrived,
            worker.config.pull_timeout_seconds,
            metadata(worker.token),
        )

    async def _confirmed(self) -> None:
        name, attempt = self.key[:2]
        proof = pb.ConfirmRequest(request=name, attempt=attempt, lease=self.start_message.source.lease)
        await confirm(self._channel(), proof, _CONFIRM_SECONDS, metadata(self.worker.token))

    def _channel(self) -> grpc.aio.Channel:
        return self.worker.channel(self.start_message.source.address)

    def _adopted(self, pulled: Pulled, local: int) -> pb.Adopted:
        return pb.Adopted(
            bytes=pulled.bytes,
            seconds=pulled.seconds,
            wait_seconds=pulled.wait_seconds,
            blocks_pulled=self.request.tokens // BLOCK_TOKENS - local,
            blocks_local=local,
        )

    def _arrived_here(self, adopted: pb.Adopted) -> None:
        names = ("bytes", "wait_seconds", "blocks_pulled", "blocks_local")
        self.phases.note({"source": self.start_message.source.address, **{n: getattr(adopted, n) for n in names}})
        self.phases.enter("decode", time.monotonic())

    def _block_arrived(self, block: int) -> None:
        self.worker.engine.post(lambda engine: engine.block_arrived(self.key, block))

    def free(self) -> None:
        """Stop the pull first: the memory is given back only when nothing writes to it any more."""
        if self._pull is None or self._pull.done():
            super().free()
            return
        if self._pull is not asyncio.current_task():
            self._pull.cancel()
            self._pull.add_done_callback(lambda _: super(DecodeLeg, self).free())
        else:
            super().free()
