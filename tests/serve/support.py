"""Hand-made parts: a byte tokenizer, verifiers whose logits are written out, a drafter that is sometimes wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from cluster.engine import Engine
from cluster.messages import DraftCall, DraftReply

SPECIALS = ("<|bos|>", "<|im_start|>", "<|im_end|>")
BOS, IM_START, IM_END = 256, 257, 258
VOCABULARY = 259
CONTEXT_TOKENS = 256
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXTS = (
    "Hello, wörld! Ünïcödé.",
    "日本語のテキスト、漢字とかな。",
    "한국어 문장입니다 🎉👩‍👩‍👧‍👦 done 🏳️‍🌈",
    "mixed 🎲 e\u0301 \u200d ends in a wide one 界",
)


def byte_tokenizer(adds_bos: bool = True) -> PreTrainedTokenizerFast:
    """Ids 0 .. 255 are bytes in the order of ByteLevel's alphabet, then the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(s, special=True) for s in SPECIALS])
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", BOS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|bos|>", eos_token="<|im_end|>", chat_template=TEMPLATE
    )


def ids_of(text: str) -> tuple[int, ...]:
    """The byte ids of a text, without BOS."""
    return tuple(byte_tokenizer()(text, add_special_tokens=False)["input_ids"])


class NoCache:
    """The cache of a verifier that needs none."""

    def move_row(self, source: int, target: int) -> None:
        pass

    def clear_row(self, row: int) -> None:
        """Nothing to clear."""
        assert row >= 0


class HandVerifier:
    """A verifier whose logits are a function of (tokens ``[n, T]``, positions ``[n, T]``) -> ``[n, T, V]``."""

    vocab_size, context_tokens = VOCABULARY, CONTEXT_TOKENS
    device = torch.device("cpu")

    def __init__(self, logits: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.cache = NoCache()
        self._logits = logits

    def forward(
        self,
        token_ids: Tensor,
        first_positions: Tensor,
        first_row: int = 0,  # noqa: ARG002
        logits_to_keep: int = 0,
    ) -> tuple[Tensor, Tensor]:
        positions = first_positions[:, None] + torch.arange(token_ids.shape[1])
        logits = self._logits(token_ids, positions)[:, -logits_to_keep:]
        return logits, logits.new_empty(*token_ids.shape, 0)


def scripted(text: str, prompt_tokens: int) -> HandVerifier:
    """Says ``text`` and then the end of the sequence, after a prompt of so many tokens."""
    script = torch.tensor([*ids_of(text), *[IM_END] * CONTEXT_TOKENS])

    def logits(_tokens: Tensor, positions: Tensor) -> Tensor:
        following = script[(positions + 1 - prompt_tokens).clamp_min(0)]
        return 30.0 * torch.nn.functional.one_hot(following, VOCABULARY).float()

    return HandVerifier(logits)


def babbling() -> HandVerifier:
    """Draws printable ASCII from a random bigram law; it never ends by itself."""
    table = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(0))
    printable = torch.zeros(VOCABULARY, dtype=torch.bool)
    printable[list(ids_of("abcdefghijklmnopqrstuvwxyz ,."))] = True
    table = table.masked_fill(~printable, -30.0)
    return HandVerifier(lambda tokens, _positions: table[tokens])


class ClumsyDrafter:
    """Drafts what the verifier would say greedily, with every fifth position wrong."""

    max_block, context_tokens = 8, CONTEXT_TOKENS

    def __init__(self, verifier: HandVerifier) -> None:
        self._verifier = verifier

    def draft(self, call: DraftCall) -> DraftReply:
        drafts = [self._row(*row) for row in zip(call.anchors, call.anchor_positions, call.lengths, strict=True)]
        return DraftReply(tuple(drafts), tuple(e.passes for e in call.efforts), 0.0)

    def _row(self, token: int, position: int, length: int) -> tuple[int, ...]:
        drafted: list[int] = []
        for at in range(position, position + length):
            logits, _ = self._verifier.forward(torch.tensor([[token]]), torch.tensor([at]))
            token = int(logits[0, 0].argmax())
            drafted.append(0 if at % 5 == 0 else token)
        return tuple(drafted)


def engine_of(verifier: HandVerifier, max_rows: int = 4, kind: type[Engine] = Engine, drafts: bool = True) -> Engine:
    """A real engine over hand-made models."""
    tokenizer = byte_tokenizer()
    drafter = ClumsyDrafter(verifier) if drafts else None
    stand_in: Any = verifier
    return kind(stand_in, drafter, max_rows, lambda ids: tokenizer.decode(ids, skip_special_tokens=True))


class DyingEngine(Engine):
    """Breaks in its third step."""

    steps = 0

    def step(self) -> Any:
        self.steps += 1
        if self.steps == 3:
            raise RuntimeError("secret detail")
        return super().step()


class SlowEngine(Engine):
    """Takes 5 ms a step, so that a test can act in between; records where it is used."""

    threads: frozenset[str] = frozenset()

    def step(self) -> Any:
        self.threads |= {threading.current_thread().name}
        time.sleep(0.005)
        return super().step()


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Return once the condition holds; fail if it does not within the time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.005)
