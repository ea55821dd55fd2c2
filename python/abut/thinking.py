"""Thinking apart from action: what an env may see of a completion.

No character of the action is lost, and no thinking reaches the env, not even thinking that was
cut by the length limit.
"""

OPEN = "<think>"
CLOSE = "</think>"


def split_thinking(completion: str, *, opened: bool = False) -> tuple[str, str]:
    """`(reasoning, action)` of one completion without its stop token.

    Thinking counts where it comes first: after optional whitespace, or opened by the generation
    prompt (`opened`, or a `</think>` that no `<think>` precedes). A `<think>` further on is part
    of the action.

    - Thinking that is closed ends at the first `</think>`. The reasoning is stripped of
      whitespace, the action of the newlines around it, which the format asks for; its spaces stay.
    - Thinking that is not closed is all reasoning; the action is `""`.
    - Without thinking the completion is the action, character for character.
    """
    head, closed, action = completion.partition(CLOSE)
    begun = head.lstrip()
    if begun.startswith(OPEN):
        reasoning = begun.removeprefix(OPEN)
    elif opened or (closed and OPEN not in head):
        reasoning = begun
    else:
        return "", completion
    return reasoning.strip(), action.strip("\r\n")
