"""What another process says of things that were sent to it. It has none of the sender's files."""

from typing import Any

TEXT = "Wörter <think>\n 12,345 你好 <|im_end|>\n"
NEXT = [{"role": "user", "content": "And <|im_end|>?"}]
OPENING = [{"role": "system", "content": "Be brief."}, *NEXT]


def said_of(tokenizer: Any, processor: Any, seam: Any, turn: Any) -> Any:
    """All that matters of each, as plain values."""
    opening, increment = processor.opening(OPENING), processor.increment(NEXT)
    return {
        "ids": tokenizer.encode(TEXT).tolist(),
        "as text": tokenizer.encode(TEXT, added="text").tolist(),
        "profile": tokenizer.profile(),
        "parts": [(type(part).__name__, str(part)) for part in (*opening, *increment)],
        "tokens": tokenizer.encode_parts(opening).tolist(),
        "stops": (processor.stop_token_ids, processor.close_token_id),
        "parsed": processor.parse_agent_output("<think>\nhm\n</think>\n\nyes"),
        "report": processor.report,
        "seam": (repr(seam), repr(seam.merge)),
        "turn": (turn.start, turn.end),
    }


def there_and_back(things: Any) -> Any:
    """What is said of them here, and the things themselves."""
    return said_of(*things), things


class Lengths:
    """A dataset of torch: the tokens of numbers, by a tokenizer and a processor of its own."""

    def __init__(self, tokenizer: Any, processor: Any) -> None:
        self.tokenizer = tokenizer
        self.processor = processor

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        parts = self.processor.opening([{"role": "user", "content": "word " * index}])
        return len(self.tokenizer.encode_parts(parts))
