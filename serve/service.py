"""Generation for asyncio clients: an engine stepped by one thread, and each request's text as it is committed.

It knows neither HTTP nor Ray. The engine belongs to the thread alone; everyone else leaves commands in a queue and gets
events in a mailbox on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import secrets
import threading
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from cluster.decoding import Effort, RequestStats, Sampling, StopRules
from cluster.engine import Engine, RequestError
from cluster.messages import Progress, Request
from cluster.models.loading import stop_ids
from serve.knobs import Knobs
from serve.prompts import PromptEncoder
from serve.protocol import FinishReason
from serve.text import DeliveredText

logger = logging.getLogger(__name__)


class EngineStoppedError(RuntimeError):
    """The engine runs no more, so nothing can be generated."""


class GenerationError(RuntimeError):
    """This generation failed; others are not affected."""


@dataclass(frozen=True)
class Outcome:
    """How a generation ended.

    Attributes:
        request: what was asked, the knobs and the seed in effect included.
        completion_tokens: tokens generated, one that ends the text included.
        stats: the engine's counters; None if the text ended before the engine knew.
        ttft_s: seconds from the request's start to its first text; None without any text. latency_s: to its end.
    """

    request: Request
    finish_reason: FinishReason
    completion_tokens: int
    stats: RequestStats | None
    ttft_s: float | None
    latency_s: float


@dataclass(frozen=True)
class Delta:
    """Text that one round added; ``outcome`` is set on the last delta, whose text may be empty."""

    text: str
    outcome: Outcome | None = None


@dataclass(frozen=True)
class _Mailbox:
    """Where a client waits for its events, filled from the engine's thread."""

    loop: asyncio.AbstractEventLoop
    events: asyncio.Queue[Progress | Exception] = field(default_factory=asyncio.Queue)

    def put(self, event: Progress | Exception) -> bool:
        """False if the client's event loop is closed."""
        try:
            self.loop.call_soon_threadsafe(self.events.put_nowait, event)
        except RuntimeError:
            return False
        return True


@dataclass(frozen=True)
class _Submit:
    request: Request
    mailbox: _Mailbox


@dataclass(frozen=True)
class _Cancel:
    request_id: str


class _Stop:
    pass


class GenerationService:
    """Runs an engine in a thread of its own and hands out text.

    Args:
        engine: taken over: nobody else may use it until :meth:`close`.
        tokenizer: the verifier's.
        defaults: the knobs of requests that name none; None drafts whole blocks in one pass, losslessly.
        threads: torch threads of the engine on the CPU.
    """

    def __init__(self, engine: Engine, tokenizer: Any, defaults: Knobs | None = None, threads: int = 1) -> None:
        self._engine, self._threads = engine, threads
        self.prompts = PromptEncoder(tokenizer)
        self._decode = partial(
            self.prompts.tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        self._stop_ids = stop_ids(tokenizer)
        self.context_tokens = engine.verifier.context_tokens
        self.max_block = engine.drafter.max_block if engine.drafter is not None else 0
        self.defaults = defaults or Knobs(Effort(self.max_block) if self.max_block else None)
        self._commands: queue.SimpleQueue[_Submit | _Cancel | _Stop] = queue.SimpleQueue()
        self._mailboxes: dict[str, _Mailbox] = {}  # the engine thread's own
        self._door = threading.Lock()  # held to put a command, and to close: no command comes after the end
        self._stopped: str | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str | None:
        """Why the engine runs no more; None while it does."""
        return self._stopped

    def close(self) -> None:
        """End the engine's thread after the round it is in; generations in flight fail."""
        with suppress(EngineStoppedError):
            self._post(_Stop())
        self._thread.join()

    def make_request(
        self,
        prompt: tuple[int, ...],
        knobs: Knobs,
        max_tokens: int | None = None,
        stop: tuple[str, ...] = (),
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
    ) -> Request:
        """A checked request for :meth:`generate`.

        Args:
            prompt: token ids.
            knobs: the operating point, fixed from here on.
            max_tokens: most tokens generated; None, or more than the context has room for, fills the context.
            stop: texts that end the generation.
            temperature, top_k, top_p: see :class:`cluster.decoding.Sampling`.
            seed: None draws one.

        Raises:
            RequestError: this engine can never run it.
        """
        room = max(1, self.context_tokens - len(prompt))
        request = Request(
            id=uuid.uuid4().hex,
            prompt=prompt,
            stop=StopRules(min(max_tokens or room, room), self._stop_ids, stop),
            sampling=Sampling(temperature, top_k, top_p, secrets.randbits(63) if seed is None else seed),
            effort=knobs.effort,
            leniency=knobs.leniency,
        )
        self._engine.check(request)  # reads only what never changes
        return request

    async def generate(self, request: Request) -> AsyncGenerator[Delta]:
        """The request's text, one delta per round that added any, the last one with the outcome.

        Closing the generator, or cancelling the task that waits on it, frees the engine's row.

        Raises:
            EngineStoppedError: the engine ended before the request did.
            GenerationError: the request failed by itself.
        """
        mailbox = _Mailbox(asyncio.get_running_loop())
        account = _Account(request, self._decode)
        self._post(_Submit(request, mailbox))
        in_engine = True
        try:
            while True:
                event = await mailbox.events.get()
                in_engine = isinstance(event, Progress) and event.completion is None
                if isinstance(event, Exception):
                    raise event
                delta = account.add(event)
                if delta.text or delta.outcome:
                    yield delta
                if delta.outcome:
                    return
        finally:
            if in_engine:
                with suppress(EngineStoppedError):
                    self._post(_Cancel(request.id))

    def _post(self, command: _Submit | _Cancel | _Stop) -> None:
        with self._door:
            if self._stopped is not None:
                raise EngineStoppedError(self._stopped)
            self._commands.put(command)

    def _run(self) -> None:
        """The engine's thread."""
        if self._engine.verifier.device.type == "cpu":
            torch.set_num_threads(self._threads)
        reason = "Expected a running engine, got one that is shutting down; try again later"
        try:
            while self._take_commands():
                for event in self._engine.step():
                    self._deliver(event)
        except Exception as error:
            logger.exception("the engine stopped")
            reason = f"Expected a running engine, got one that stopped ({type(error).__name__}); restart the server"
        finally:
            self._fail_all(reason)

    def _take_commands(self) -> bool:
        """Apply what waits in the queue; an idle engine waits for more. False ends the thread."""
        wait = self._engine.idle
        while True:
            try:
                command = self._commands.get(block=wait)
            except queue.Empty:
                return True
            wait = False
            match command:
                case _Stop():
                    return False
                case _Submit(request, mailbox):
                    self._submit(request, mailbox)
                case _Cancel(request_id):
                    self._engine.cancel(request_id)
                    self._mailboxes.pop(request_id, None)

    def _submit(self, request: Request, mailbox: _Mailbox) -> None:
        try:
            self._engine.submit(request)
        except RequestError as error:
            mailbox.put(error)
        else:
            self._mailboxes[request.id] = mailbox

    def _deliver(self, event: Progress) -> None:
        """Hand an event to its client; a request whose client is gone is ended."""
        mailbox = self._mailboxes.get(event.request_id)
        if event.completion is not None:
            self._mailboxes.pop(event.request_id, None)
        if mailbox is not None and not mailbox.put(event) and event.completion is None:
            self._engine.cancel(event.request_id)
            del self._mailboxes[event.request_id]

    def _fail_all(self, reason: str) -> None:
        """Close the door, then tell everyone who still waits."""
        with self._door:
            self._stopped = reason
        waiting = list(self._mailboxes.values())
        while not self._commands.empty():
            command = self._commands.get()
            if isinstance(command, _Submit):
                waiting.append(command.mailbox)
        for mailbox in waiting:
            mailbox.put(EngineStoppedError(reason))


class _Account:
    """One generation as its client sees it: text, times, end."""

    def __init__(self, request: Request, decode: Any) -> None:
        self._request, self._started_s = request, time.perf_counter()
        self._text = DeliveredText(decode, request.stop.stop_strings, request.stop.stop_ids)
        self._ttft_s: float | None = None

    def add(self, event: Progress) -> Delta:
        """What a round's tokens add; raises :class:`GenerationError` if the engine failed the request."""
        completion = event.completion
        if completion is not None and completion.error is not None:
            raise GenerationError(f"Expected a finished generation, got an error: {completion.error}")
        text = self._text.push(event.token_ids)
        ended = completion is not None or self._text.stopped
        if ended:
            text += self._text.finish()
        elapsed_s = time.perf_counter() - self._started_s
        if text and self._ttft_s is None:
            self._ttft_s = elapsed_s
        if not ended:
            return Delta(text)
        reason: FinishReason = "length" if completion and completion.finish_reason == "length" else "stop"
        stats = completion.stats if completion else None
        if self._text.stopped:
            reason = "stop"
        return Delta(text, Outcome(self._request, reason, self._text.tokens, stats, self._ttft_s, elapsed_s))
