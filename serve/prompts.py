"""Text and messages to token ids.

The one convention for the beginning-of-sequence token: a chat gets exactly what its template writes, a plain prompt exactly
what the tokenizer adds, and never two.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError


class PromptError(ValueError):
    """A prompt or conversation that cannot become token ids; the message says why."""


class PromptEncoder:
    """Encodes prompts.

    Args:
        tokenizer: a `transformers` tokenizer. It is copied: encoding changes a tokenizer's flags for a moment, and the
            engine decodes with the original in another thread.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = copy.deepcopy(tokenizer)

    def text(self, prompt: str) -> tuple[int, ...]:
        """Ids of a plain prompt. It is the client's own whole text, so special tokens written in it are special tokens."""
        bos = self.tokenizer.bos_token
        written = bos is not None and prompt.startswith(bos)
        return tuple(self.tokenizer(prompt, add_special_tokens=not written)["input_ids"])

    def chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Ids of a conversation, ready for the assistant's turn.

        Special tokens come from the template alone: what looks like one inside a message is encoded as ordinary text, so a
        message cannot open a turn of another role. Models that can think before they answer are asked not to, as in the
        experiments.

        Raises:
            PromptError: there is no chat template, or it refuses the conversation.
        """
        if not self.tokenizer.chat_template:
            raise PromptError("Expected a model with a chat template, got one without; use /v1/completions")
        try:
            encoded = self.tokenizer.apply_chat_template(
                [dict(m) for m in messages],
                add_generation_prompt=True,
                sanitize_control_tokens=True,
                enable_thinking=False,
            )
        except (TemplateError, ValueError) as error:
            raise PromptError(f"Expected a conversation that the chat template accepts, got: {error}") from error
        return tuple(encoded["input_ids"])
