"""The HTTP interface: OpenAI's endpoints over a :class:`serve.service.GenerationService`. It knows no Ray.

1. The body is validated (:mod:`serve.protocol`). 2. Text becomes token ids (:mod:`serve.prompts`). 3. The knobs are fixed
(:mod:`serve.knobs`). 4. The service generates. 5. Deltas leave as chunks, or joined as one response (:mod:`serve.replies`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from cluster import messages
from cluster.engine import RequestError
from serve import errors
from serve.errors import ApiError
from serve.prompts import PromptError
from serve.protocol import (
    ChatCompletion,
    ChatRequest,
    Completion,
    CompletionRequest,
    ErrorReply,
    GenerationRequest,
    ModelCard,
    ModelList,
)
from serve.replies import ChatReplies, Replies, TextReplies
from serve.service import EngineStoppedError, GenerationError, GenerationService, Outcome

_OPENAI_COMPLETION_TOKENS = 16
_ERRORS: dict[int | str, dict[str, Any]] = {status: {"model": ErrorReply} for status in (400, 404, 500, 503)}
_SSE_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def create_app(service: GenerationService, model_name: str) -> FastAPI:
    """The application.

    Args:
        service: generates; it stays the caller's to close.
        model_name: the one model name that requests may use.
    """
    app = FastAPI(title="Specfrontier", docs_url=None, redoc_url=None)
    errors.install(app)
    api = _Api(service, model_name)
    app.get("/health", responses={503: {"model": ErrorReply}})(api.health)
    app.get("/v1/models", response_model=ModelList)(api.models)
    app.get("/v1/models/{model}", response_model=ModelCard, responses={404: {"model": ErrorReply}})(api.model)
    app.post("/v1/completions", response_model=Completion, responses=_ERRORS)(api.completions)
    app.post("/v1/chat/completions", response_model=ChatCompletion, responses=_ERRORS)(api.chat)
    return app


class _Api:
    """The endpoints."""

    def __init__(self, service: GenerationService, model_name: str) -> None:
        self._service = service
        self._card = ModelCard(id=model_name, created=int(time.time()))

    async def health(self) -> JSONResponse:
        """200 while the engine runs."""
        if self._service.failure is not None:
            raise ApiError(503, self._service.failure, code="engine_stopped")
        return JSONResponse({"status": "ok"})

    async def models(self) -> ModelList:
        """The models served."""
        return ModelList(data=[self._card])

    async def model(self, model: str) -> ModelCard:
        """One model."""
        if model != self._card.id:
            raise ApiError(404, f"Expected model {self._card.id!r}, got {model!r}", "model", "model_not_found")
        return self._card

    async def completions(self, body: CompletionRequest, http: Request) -> Any:
        """Continue a prompt."""
        await self.model(body.model)
        prompt = self._service.prompts.text(body.prompt) if isinstance(body.prompt, str) else tuple(body.prompt)
        request = self._admit(body, prompt, body.max_tokens or _OPENAI_COMPLETION_TOKENS, "prompt")
        return await self._answer(http, body, request, TextReplies(request.id, body.model))

    async def chat(self, body: ChatRequest, http: Request) -> Any:
        """Answer a conversation."""
        await self.model(body.model)
        try:
            prompt = self._service.prompts.chat([{"role": m.role, "content": m.text} for m in body.messages])
        except PromptError as error:
            raise ApiError(400, str(error), "messages", "invalid_value") from error
        request = self._admit(body, prompt, body.max_completion_tokens or body.max_tokens, "messages")
        return await self._answer(http, body, request, ChatReplies(request.id, body.model))

    def _admit(
        self, body: GenerationRequest, prompt: tuple[int, ...], max_tokens: int | None, param: str
    ) -> messages.Request:
        """Fix the knobs and check the request; ``param`` is where the prompt came from."""
        wanted = body.specfrontier
        try:
            knobs = self._service.defaults.override(wanted, self._service.max_block)
        except ValueError as error:
            raise ApiError(400, str(error), "specfrontier", "invalid_value") from error
        try:
            return self._service.make_request(
                prompt,
                knobs,
                max_tokens=max_tokens,
                stop=body.stop_strings,
                temperature=1.0 if body.temperature is None else body.temperature,
                top_k=wanted.top_k if wanted else None,
                top_p=body.top_p,
                seed=body.seed,
            )
        except RequestError as error:
            raise ApiError(400, str(error), param, "invalid_value") from error

    async def _answer(self, http: Request, body: GenerationRequest, request: messages.Request, replies: Replies) -> Any:
        if self._service.failure is not None:
            raise ApiError(503, self._service.failure, code="engine_stopped")
        if body.stream:
            events = self._stream(request, replies, body.wants_usage_chunk)
            return StreamingResponse(events, media_type="text/event-stream", headers=_SSE_HEADERS)
        return replies.whole(*await _unless_disconnected(http, self._collect(request)))

    async def _collect(self, request: messages.Request) -> tuple[str, Outcome]:
        """The whole text and how it ended."""
        pieces = []
        try:
            async with aclosing(self._service.generate(request)) as deltas:
                async for delta in deltas:
                    pieces.append(delta.text)
                    if delta.outcome is not None:
                        return "".join(pieces), delta.outcome
        except (EngineStoppedError, GenerationError, RequestError) as error:
            raise _api_error(error) from error
        raise AssertionError("unreachable: the last delta has the outcome")

    async def _stream(self, request: messages.Request, replies: Replies, usage: bool) -> AsyncIterator[str]:
        """Server-sent events: one per delta, then the usage if wanted, then ``[DONE]``; an error is an event too."""
        try:
            async with aclosing(self._service.generate(request)) as deltas:
                async for delta in deltas:
                    yield _event(replies.chunk(delta).model_dump_json())
                    if delta.outcome is not None and usage:
                        yield _event(replies.usage(delta.outcome).model_dump_json())
        except (EngineStoppedError, GenerationError, RequestError) as error:
            yield _event(_api_error(error).body)
        yield _event("[DONE]")


def _event(data: str) -> str:
    return f"data: {data}\n\n"


def _api_error(error: EngineStoppedError | GenerationError | RequestError) -> ApiError:
    if isinstance(error, EngineStoppedError):
        return ApiError(503, str(error), code="engine_stopped")
    if isinstance(error, RequestError):
        return ApiError(400, str(error), code="invalid_value")
    return ApiError(500, str(error), code="generation_failed")


async def _unless_disconnected(http: Request, work: Any) -> tuple[str, Outcome]:
    """The result of ``work``; it is cancelled if the client goes away first."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(http))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(499, "Expected a client that waits for its answer, got a closed connection")
        result: tuple[str, Outcome] = task.result()
        return result
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(http: Request) -> None:
    """Returns when the client has closed the connection."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
