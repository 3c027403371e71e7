"""The wire: OpenAI's completions and chat completions, as far as the engine supports them, and our one extension field.

A field that is not here is refused by name, never ignored. Documented extension, in requests and responses alike:
``specfrontier``, see :class:`KnobFields` and :class:`Statistics`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from cluster.decoding.effort import Reveal

FinishReason = Literal["stop", "length"]

_MAX_STOPS = 16
_MAX_STOP_CHARS = 256


def _encodable(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("Expected valid Unicode text, got a lone surrogate; send the character whole") from None
    return text


Text = Annotated[str, AfterValidator(_encodable)]


class Incoming(BaseModel):
    """What a client sends: unknown fields, wrong types and numbers that are not finite are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class KnobFields(Incoming):
    """The extension field of a request: fixed knobs. What is left out is the server's default.

    Attributes:
        block: drafted tokens per block; 0 decodes plainly, without drafts.
        passes: denoising passes per block. reveal, value: see :class:`cluster.decoding.Effort`.
        leniency_rule, leniency_value: see :class:`cluster.decoding.Leniency`; value 0 is lossless.
        top_k: sample among the k most likely tokens only.
    """

    block: int | None = Field(None, ge=0)
    passes: int | None = Field(None, ge=1)
    reveal: Reveal | None = None
    value: float | None = Field(None, ge=0, le=1)
    leniency_rule: str | None = None
    leniency_value: float | None = Field(None, ge=0)
    top_k: int | None = Field(None, ge=1)


class StreamOptions(Incoming):
    """``include_usage`` asks for one more chunk with the usage, before the end of the stream."""

    include_usage: bool = False


class GenerationRequest(Incoming):
    """What both endpoints take.

    Attributes:
        temperature: 0 is greedy; the default is OpenAI's, 1.
        seed: the same seed gives the same text, whatever else runs; without one a random seed is drawn and reported.
        stop: up to 16 texts that end the generation; they are not part of it.
        n: 1, the only number of answers supported.
    """

    model: Text
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Text | Annotated[list[Text], Field(max_length=_MAX_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = None
    specfrontier: KnobFields | None = None

    @field_validator("stop")
    @classmethod
    def _stops_are_short_texts(cls, stop: str | list[str] | None) -> str | list[str] | None:
        for text in [stop] if isinstance(stop, str) else stop or ():
            if not 1 <= len(text) <= _MAX_STOP_CHARS:
                raise ValueError(f"Expected stop texts of 1 to {_MAX_STOP_CHARS} characters, got one of {len(text)}")
        return stop

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise ValueError("Expected stream_options only with stream true, got them without; leave them out")
        return self

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def wants_usage_chunk(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(GenerationRequest):
    """``/v1/completions``: continue one prompt, a text or token ids. ``max_tokens`` is 16 if left out, as at OpenAI."""

    prompt: Text | list[int]
    max_tokens: int | None = Field(None, ge=1)

    @field_validator("prompt")
    @classmethod
    def _prompt_is_not_empty(cls, prompt: str | list[int]) -> str | list[int]:
        if not prompt:
            raise ValueError("Expected a prompt of at least one token, got an empty one")
        return prompt


class TextPart(Incoming):
    """A part of a message's content; only text is supported."""

    type: Literal["text"]
    text: Text


class Message(Incoming):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: Text | list[TextPart]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(GenerationRequest):
    """``/v1/chat/completions``: answer a conversation; without a limit, up to the end of the context."""

    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _one_limit(self) -> ChatRequest:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("Expected one of max_tokens and max_completion_tokens, got both; leave out max_tokens")
        return self


class TokensDetails(BaseModel):
    """Drafted tokens that were and were not accepted; null where nothing was drafted."""

    accepted_prediction_tokens: int | None
    rejected_prediction_tokens: int | None


class Usage(BaseModel):
    """Token counts; a token that ends the text (end of sequence, the end of a stop string) counts as generated."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: TokensDetails


class Statistics(BaseModel):
    """The extension field of a response: the knobs in effect and what they did. Null where a counter does not apply.

    Attributes:
        block: 0 for plain decoding; then passes, reveal and value are null.
        lossless: whether these knobs guarantee the verifier's own text.
        seed: repeat the request with it to get the same text.
        acceptance_lengths: per round, accepted drafted tokens + 1 (the verifier's own token), 1 .. block + 1.
        own_sample_disagreements: emitted tokens that are not the verifier's own sample.
        ttft_ms, latency_ms: from the request's arrival at the engine's queue to its first text and to its end.
    """

    block: int
    passes: int | None
    reveal: str | None
    value: float | None
    leniency_rule: str
    leniency_value: float
    lossless: bool
    top_k: int | None
    seed: int
    num_spec_rounds: int | None
    num_draft_tokens: int | None
    num_accepted_draft_tokens: int | None
    acceptance_lengths: list[int] | None
    draft_forwards: int | None
    own_sample_disagreements: int | None
    ttft_ms: float | None
    latency_ms: float


class Reply(BaseModel):
    """What every response object and stream chunk carries."""

    id: str
    created: int
    model: str
    usage: Usage | None = None
    specfrontier: Statistics | None = None


class TextChoice(BaseModel):
    """A completion, or a piece of one; ``finish_reason`` is null until the last piece."""

    index: Literal[0] = 0
    text: str
    finish_reason: FinishReason | None
    logprobs: None = None


class Completion(Reply):
    """Response and stream chunk of ``/v1/completions``; the chunk with the usage has no choice."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[TextChoice]


class ChatAnswer(BaseModel):
    """The assistant's message."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    """A chat answer."""

    index: Literal[0] = 0
    message: ChatAnswer
    finish_reason: FinishReason
    logprobs: None = None


class ChatCompletion(Reply):
    """Response of ``/v1/chat/completions``."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]


class ChatDelta(BaseModel):
    """A piece of a chat answer; the first one names the role."""

    role: Literal["assistant"] | None = None
    content: str


class ChatChunkChoice(BaseModel):
    """See :class:`TextChoice`."""

    index: Literal[0] = 0
    delta: ChatDelta
    finish_reason: FinishReason | None
    logprobs: None = None


class ChatChunk(Reply):
    """Stream chunk of ``/v1/chat/completions``."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatChunkChoice]


class ModelCard(BaseModel):
    """A model that this server serves."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["specfrontier"] = "specfrontier"


class ModelList(BaseModel):
    """Response of ``/v1/models``."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class ErrorDetail(BaseModel):
    """``param`` names the request's field at fault; ``code`` is a short name of the fault for programs."""

    message: str
    type: Literal["invalid_request_error", "server_error"]
    param: str | None = None
    code: str | None = None


class ErrorReply(BaseModel):
    """OpenAI's error shape."""

    error: ErrorDetail
