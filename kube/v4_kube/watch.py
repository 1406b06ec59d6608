"""Lists the objects of one path, then watches them, and passes every change on.

A stream that breaks is resumed from the last resourceVersion. If the server no longer has that version, or answers
anything else that is unexpected, the objects are listed again. A stream that is silent for too long counts as broken.
"""

import asyncio
import random
from collections.abc import Sequence
from contextlib import aclosing
from typing import Protocol

from v4_core.kubernetes import Json
from v4_kube.client import KubeClient
from v4_kube.errors import ApiError, Unreachable

_STREAM_SECONDS = (240, 300)  # after which the server ends a stream; random, so that streams do not end all at once
_QUIET_SECONDS = 90.0  # the server sends at least a bookmark every minute
_PAGE = "500"  # objects in one response of a list
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 10.0  # seconds of back-off between attempts
_STEADY_SECONDS = 10.0  # the back-off starts again after an attempt that lasted this long


class Sink(Protocol):
    """Receives what a watch reads."""

    def replace(self, objects: Sequence[Json], version: str) -> None:
        """Takes a complete list of the objects that exist, as of this resourceVersion."""

    def put(self, obj: Json) -> None:
        """Takes an object that was created or changed."""

    def remove(self, obj: Json) -> None:
        """Takes the last state of an object that was deleted."""

    def failed(self, error: ApiError, failures: int) -> None:
        """Takes the error of an attempt that will be repeated; `failures` attempts have failed in a row."""


class Watch:
    """Follows the objects of one path that have a label.

    `metadata_only`: the server sends the metadata of the objects and nothing else. `relist`: the objects are listed
    again after every stream, so that an event that a stream lost is corrected within minutes.
    """

    def __init__(
        self,
        api: KubeClient,
        path: str,
        selector: str,
        sink: Sink,
        *,
        metadata_only: bool = False,
        relist: bool = False,
    ) -> None:
        self.path = path
        self.synced = asyncio.Event()  # set after the first list
        self._api, self._sink = api, sink
        self._selector = {"labelSelector": selector}
        self._metadata_only, self._relist = metadata_only, relist
        self._version = ""  # resourceVersion to resume from; empty = list first

    async def run(self) -> None:
        """Lists and watches until cancelled."""
        clock, failures = asyncio.get_running_loop().time, 0
        while True:
            began = clock()
            try:
                if not self._version or self._relist:
                    await self._list()
                await self._follow()
                # A list for every stream is expensive if the server ends the streams at once.
                failures = failures + 1 if self._relist and clock() - began < _STEADY_SECONDS else 0
            except ApiError as error:
                failures = 1 if clock() - began > _STEADY_SECONDS else failures + 1
                if not isinstance(error, Unreachable):
                    self._version = ""
                self._sink.failed(error, failures)
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(failures, 10))
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))

    async def _list(self) -> None:
        objects: list[Json] = []
        query = {**self._selector, "limit": _PAGE}
        while True:
            page = await self._api.get(self.path, query, metadata_only=self._metadata_only)
            objects += page.get("items") or ()
            following = page["metadata"].get("continue")
            if not following:
                break
            query["continue"] = following
        self._version = page["metadata"]["resourceVersion"]
        self._sink.replace(objects, self._version)
        self.synced.set()

    async def _follow(self) -> None:
        query = {
            **self._selector,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(*_STREAM_SECONDS)),
        }
        events = self._api.watch(self.path, query, _QUIET_SECONDS, metadata_only=self._metadata_only)
        async with aclosing(events) as stream:
            async for event in stream:
                self._pass_on(event["type"], event["object"])

    def _pass_on(self, kind: str, obj: Json) -> None:
        if kind == "ERROR":
            raise ApiError(f"watch {self.path}", obj.get("code", 500), obj)
        if kind == "DELETED":
            self._sink.remove(obj)
        elif kind != "BOOKMARK":
            self._sink.put(obj)
        self._version = obj["metadata"]["resourceVersion"]
