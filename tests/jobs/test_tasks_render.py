"""Rendering, with a byte-sized tokenizer that behaves like the real ones: template, BOS, special tokens."""

import dataclasses
from typing import Any

import pytest

from jobs.tasks import Item, Message, render, render_text

BOS = 1


class ToyTokenizer:
    """Characters as ids; `<s>` is the BOS id, which an ordinary call puts in front of everything."""

    name_or_path = "toy"
    chat_template: str | None = "a template"

    def apply_chat_template(self, turns: list[dict[str, str]], tokenize: bool, **options: Any) -> str:
        assert not tokenize
        assert options == {"add_generation_prompt": True, "enable_thinking": False}
        return "<s>" + "".join(f"[{turn['role']}]{turn['content']}" for turn in turns) + "[assistant]"

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids = [BOS] if add_special_tokens else []
        for index, part in enumerate(text.split("<s>")):
            ids += [BOS] * (index > 0) + [ord(character) for character in part]
        return {"input_ids": ids}


ITEM = Item("x/1", (Message("system", "S"), Message("user", "U")), prefill="def f():")


def test_the_prefill_follows_the_generation_prompt() -> None:
    assert render_text(ToyTokenizer(), ITEM) == "<s>[system]S[user]U[assistant]def f():"  # type: ignore[arg-type]


def test_bos_is_not_doubled() -> None:
    ids = render(ToyTokenizer(), dataclasses.replace(ITEM, prefill=""))  # type: ignore[arg-type]
    assert ids.count(BOS) == 1
    assert ids[0] == BOS


def test_a_tokenizer_without_chat_template_is_refused() -> None:
    tokenizer = ToyTokenizer()
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="chat template, got 'toy' without one; use an instruction-tuned model"):
        render(tokenizer, ITEM)  # type: ignore[arg-type]
