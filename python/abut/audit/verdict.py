"""The audit of a tokenizer and its chat template.

The audit assumes nothing: it makes seams and looks at them, spells control tokens in contents and
looks for them in the ids, and with `fuzz` compares random conversations with the full render.
"""

import copy
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from abut._native import Tokenizer
from abut.audit.fuzz import FuzzResult, fuzz_conversations, tool_message
from abut.audit.replay import Replay, control_tokens
from abut.audit.round_trips import RoundTrip, judge_round_trips
from abut.audit.seam_verdicts import SeamVerdict, judge_seams
from abut.errors import TemplateError
from abut.parts import Content
from abut.pretrained import generation_stop_ids, is_tokenizer_file, load_hf_tokenizer, tokenizer_of
from abut.template.image_report import ImageReport, report_model_images
from abut.template.processor import ChatTemplateProcessor
from abut.template.rendering import Rendering
from abut.template.report import TemplateReport
from abut.template.turn_layout import assistant, user

_ROLES = ("user", "tool")


@dataclass(frozen=True)
class ContentVerdict:
    """The verdict on contents: can a message's content become a control token?

    Attributes:
        tried: how many contents were tried: each control token alone, inside a string, and cut so
            that the scaffold next to it would complete it.
        minted: the contents that became a control token.
        render_mints: how many spelled control tokens become one if the template's render is
            encoded as one text.
    """

    tried: int
    minted: tuple[str, ...]
    render_mints: int

    @property
    def safe(self) -> bool:
        """True if no content became a control token."""
        return not self.minted


@dataclass(frozen=True)
class Audit:
    """The findings on one tokenizer and its chat template.

    Attributes:
        source: the name of what was audited.
        profile: `Tokenizer.profile()`.
        template: the processor's report; None if there is no template or it is refused.
        refused: why the template cannot be appended to; None if it can, or there is none.
        seams: the verdict on each seam.
        round_trips: whether abut parses samples as the template writes them.
        content: whether contents are safe; None without a template to which abut can append.
        fuzz: the result of the fuzz; None without a fuzz.
        images: the findings about images; None if the model takes none. A refusal of images is not
            a problem, because the model can be trained on text.
    """

    source: str
    profile: Mapping[str, Any]
    template: TemplateReport | None = None
    refused: str | None = None
    seams: tuple[SeamVerdict, ...] = ()
    round_trips: tuple[RoundTrip, ...] = ()
    content: ContentVerdict | None = None
    fuzz: FuzzResult | None = None
    images: ImageReport | None = None

    @property
    def problems(self) -> list[str]:
        """The reasons why it is not exact, one line each; empty if it is."""
        found = [] if self.refused is None else ["abut cannot append to the template"]
        for seam in self.seams:
            if seam.decides and seam.exact is False:
                found.append(
                    f"{seam.left} | {seam.right}: not exact in {seam.broken} of {seam.tried}"
                )
            if seam.decides and seam.refused:
                found.append(f"{seam.left} | {seam.right}: cannot be appended")
        judged = any(seam.decides and seam.exact is not None for seam in self.seams)
        if self.template is not None and not judged:
            found.append("no seam was judged, because the template does not accept such messages")
        if self.template is None and self.refused is None:
            found.append("no seam was judged, because there is no chat template")
        found += [
            f"{trip.name}: {trip.broken} of {trip.tried} samples are parsed differently from how "
            "the template writes them"
            for trip in self.round_trips
            if trip.broken
        ]
        if self.content is not None and not self.content.safe:
            found.append(f"{len(self.content.minted)} contents became control tokens")
        if self.fuzz is not None and self.fuzz.failure is not None:
            found.append(f"conversation {self.fuzz.failure.number} of the fuzz differs")
        elif self.fuzz is not None and self.fuzz.skipped == self.fuzz.conversations:
            found.append("no conversation of the fuzz could be compared")
        return found

    @property
    def exact(self) -> bool:
        """True if seams were judged, all that decide are exact, and there is no other problem."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """Return the audit as JSON-like values."""
        content = (
            None if self.content is None else {**asdict(self.content), "safe": self.content.safe}
        )
        return {**asdict(self), "content": content, "problems": self.problems, "exact": self.exact}


def audit(
    source: Any,
    *,
    template: str | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    roles: Collection[str] = _ROLES,
    fuzz: int = 0,
    seed: int = 0,
) -> Audit:
    """Audit a tokenizer and its chat template.

    Args:
        source: a model's name, a folder, a tokenizer.json, a transformers tokenizer or a
            multimodal processor that holds one.
        template: the text of a chat template to use instead of the tokenizer's own.
        template_kwargs: variables for the template, such as `{"enable_thinking": False}`.
        roles: the roles of your environment's messages: `"user"`, `"tool"` or both. Messages of
            these roles that the template takes must be appendable.
        fuzz: how many random conversations to compare with the full render.
        seed: the seed of the fuzz.

    Raises:
        TokenizerError: the tokenizer cannot be used exactly.
        TemplateError: a fuzz was asked for, and there is no template.
        MissingExtraError: a name, folder or template was given and transformers is not installed.
        OSError: the source cannot be read.
        ValueError: `roles` or `fuzz` has a value that cannot be checked.
        TypeError: `template_kwargs` has a key that abut decides itself.
    """
    _check_arguments(roles, fuzz)
    options = dict(template_kwargs or {})
    given = source
    if not isinstance(source, str | os.PathLike):
        source = tokenizer_of(source)
    name = str(getattr(source, "name_or_path", source)) or type(source).__name__
    hf_tokenizer = source
    if isinstance(source, str | os.PathLike):
        lone = is_tokenizer_file(source) and template is None
        hf_tokenizer = None if lone else load_hf_tokenizer(source)
    if template is not None:
        hf_tokenizer = copy.copy(hf_tokenizer)
        hf_tokenizer.chat_template = template
    if fuzz and not (hf_tokenizer and hf_tokenizer.chat_template):
        raise TemplateError(
            f"{name} has no chat template, so there are no conversations to compare\n"
            "hint: pass a template, or leave fuzz out"
        )
    if hf_tokenizer is None:
        return Audit(name, Tokenizer.from_file(source).profile())
    tokenizer = Tokenizer.from_pretrained(hf_tokenizer)
    images = report_model_images(given, chat_template=template, **options)
    found = Audit(name, tokenizer.profile(), images=images)
    if not hf_tokenizer.chat_template:
        return found
    stops = generation_stop_ids(source, vocab_size=tokenizer.vocab_size)
    try:
        processor = ChatTemplateProcessor(hf_tokenizer, **options)
        processor = processor.with_stop_token_ids(stops)
        processor.opening([user()])
    except TemplateError as error:
        return replace(found, refused=str(error))

    seams = tuple(judge_seams(tokenizer, processor, Rendering(hf_tokenizer, options), roles=roles))
    fuzzed = None
    if fuzz:
        replay = Replay(hf_tokenizer, tokenizer, processor, **options)
        said = [role for role in roles if role == "user" or _fits(replay, role)] or ["user"]
        system = ["system"] if _fits(replay, "system") else []
        fuzzed = fuzz_conversations(replay, fuzz, seed=seed, roles=[*said, *system])
    return replace(
        found,
        template=processor.report,
        seams=seams,
        round_trips=tuple(
            trip
            for trip in judge_round_trips(hf_tokenizer, options)
            if trip.kind == "thinking" or "tool" in roles
        ),
        content=_content_verdict(hf_tokenizer, tokenizer, processor),
        fuzz=fuzzed,
    )


def _check_arguments(roles: Collection[str], fuzz: int) -> None:
    given = {roles} if isinstance(roles, str) else set(roles)
    if isinstance(roles, str) or not given or not given <= {*_ROLES}:
        raise ValueError(
            f"roles={roles!r}: expected roles of an environment's messages\n"
            'hint: pass ["user"], ["tool"] or both'
        )
    if fuzz < 0:
        raise ValueError(
            f"fuzz={fuzz!r}: expected a number of conversations\nhint: pass 0 to leave fuzz out"
        )


def _fits(replay: Replay, role: str) -> bool:
    """Return whether random conversations can have messages of this role.

    They cannot if the template takes no such messages, nor if what it writes for them depends on
    something that random answers lack (a tool call) or on what follows (a system message that
    moves to the last turn).
    """
    if role == "system":
        conversations = [[{"role": "system", "content": "abutSystem"}, user(), assistant(), user()]]
    else:
        said = tool_message("abutResult")
        conversations = [
            [user(), assistant(), said],
            [user(), assistant(), said, assistant(), said],
            [said, assistant(), said],
        ]
    fits = False
    for conversation in conversations:
        try:
            if replay.run(conversation).problem is not None:
                return False
            fits = True
        except TemplateError:
            if not fits:
                return False
    return fits


def _content_verdict(
    hf_tokenizer: Any, tokenizer: Tokenizer, processor: ChatTemplateProcessor
) -> ContentVerdict:
    control = control_tokens(tokenizer)
    ids = set(control.values())
    parts = processor.opening([user()])
    at = next(k for k, part in enumerate(parts) if isinstance(part, Content))
    before, after = "".join(parts[:at]), "".join(parts[at + 1 :])

    def of(content: str) -> Counter[int]:
        found = tokenizer.encode_parts([*parts[:at], Content(content), *parts[at + 1 :]]).tolist()
        return Counter(i for i in found if i in ids)

    # Each is compared with a plain text of the same first and last character, because a tokenizer
    # may treat the scaffold beside it by these.
    contents: dict[str, str] = {}
    for token in control:
        plain = f"{token[0]}abut{token[-1]}"
        contents |= {token: plain, f"abut{token}abut": f"abut{plain}abut"}
    contents |= {half: f"{half[0]}abut{half[-1]}" for half in _completed_by(control, before, after)}
    minted = [text for text, plain in contents.items() if of(text) - of(plain)]
    scaffold = of("abut")
    rendered = 0
    for token in control:
        whole = hf_tokenizer.encode(before + token + after, add_special_tokens=False)
        rendered += bool(Counter(i for i in whole if i in ids) - scaffold)
    return ContentVerdict(len(contents), tuple(minted), rendered)


def _completed_by(tokens: Iterable[str], before: str, after: str) -> list[str]:
    """Return the contents that the scaffold next to them would complete to a control token."""
    return [
        half
        for token in tokens
        for k in range(1, len(token))
        for half, completed in (
            (token[:k], after.startswith(token[k:])),
            (token[k:], before.endswith(token[:k])),
        )
        if completed
    ]
