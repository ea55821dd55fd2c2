"""An audit as `abut check` prints it: a page of text with the verdict in its last sentence."""

from collections.abc import Iterable, Iterator, Sequence

from abut.audit.fuzz import FuzzResult, spelled_out
from abut.audit.round_trips import RoundTrip
from abut.audit.seam_verdicts import Break, SeamVerdict, visible
from abut.audit.verdict import Audit
from abut.template.image_report import ImageReport

_NAMED = 12  # tokens of each class that are named; --json has all


def lines(audit: Audit) -> Iterator[str]:
    """Yield the lines of the page."""
    yield from _tokenizer(audit)
    yield ""
    yield from _template(audit)
    if audit.images is not None:
        yield ""
        yield from image_lines(audit.images)
    if audit.seams:
        yield ""
        yield from _seams(audit.seams)
    if audit.round_trips:
        yield ""
        yield from _round_trips(audit.round_trips)
    if audit.content is not None:
        yield ""
        content = audit.content
        verdict = "safe" if content.safe else "NOT SAFE"
        yield (
            f"content: {verdict}; of {content.tried} contents that spell control tokens, "
            f"{len(content.minted)} became one"
        )
        yield (
            f"  (if the render were encoded as one text, content would become "
            f"{content.render_mints} of {len(audit.profile['control_tokens'])} control tokens)"
        )
        for text in content.minted[:_NAMED]:
            yield f"  minted: {text!r}"
    if audit.fuzz is not None:
        yield ""
        yield from _fuzz(audit.fuzz)
    yield ""
    if audit.exact:
        yield "result: exact at every seam that is judged"
        yield "This tokenizer and chat template are safe to train with."
    elif audit.template is None and audit.refused is None:
        yield "result: NOT JUDGED"
        yield "  the tokenizer can be used, but it has no chat template, so there are no seams"
        yield "  hint: name a folder that has a chat template, or pass one with --template"
        yield "Without a chat template, abut cannot say whether it is safe to train with."
    else:
        yield "result: NOT EXACT"
        yield from (f"  {problem}" for problem in audit.problems)
        yield f"Not safe to train with: {_why(audit)}."


def _why(audit: Audit) -> str:
    """Return, in one clause, why you should not train with it."""
    if audit.refused is not None:
        return "abut cannot append to this chat template, for the reason above"
    more = len(audit.problems) - 1
    first = audit.problems[0].partition("\n")[0] if audit.problems else "nothing was judged"
    return first + (f", and {more} more" if more else "")


def _tokenizer(audit: Audit) -> Iterator[str]:
    profile = audit.profile
    yield f"{audit.source}"
    yield (
        f"  {profile['model']}, {profile['vocab_size']:,} ids, normalizer {profile['normalizer']}, "
        f"pre-tokenizer {profile['pre_tokenizer']}, encoder {profile['encoder']}"
    )
    yield ""
    yield "tokens"
    control, hard = profile["control_tokens"], set(profile["hard_tokens"])
    soft = [token for token in control if token not in hard]
    for name, tokens, meaning in (
        ("hard", profile["hard_tokens"], "text around them cannot change their tokens"),
        ("control", control, "only the template's own text becomes one"),
        ("not hard", soft, "control tokens whose edges can change with the text"),
        ("textual", profile["textual_tokens"], "ordinary text may become one"),
        ("mintable", profile["mintable_tokens"], "the model's own vocabulary could spell them"),
    ):
        yield f"  {name:<9}{len(tokens):>5}  {meaning if tokens else 'none'}"
        if tokens and name != "control":
            yield f"                  {_listed(tokens)}"


def _template(audit: Audit) -> Iterator[str]:
    if audit.refused is not None:
        yield "template: REFUSED"
        yield from (f"  {line}" for line in audit.refused.splitlines())
        return
    report = audit.template
    if report is None:
        yield "template: none, so there are no seams to judge"
        return
    yield "template"
    yield f"  close              {visible(report.end_token)}"
    yield f"  stop tokens        {' '.join(map(visible, report.stop_tokens))}"
    yield f"  separator          {report.separator!r}"
    yield f"  generation prompt  {report.generation_prompt!r}"
    survives = {
        "kept": "kept in earlier turns",
        "stripped": "stripped from earlier turns by the template; a trajectory keeps it",
    }
    yield f"  thinking           {survives[report.history_thinking]}"
    for note in report.notes:
        yield f"  note: {note}"


def image_lines(images: ImageReport) -> Iterator[str]:
    """Yield the lines about a model's images."""
    if images.refused is not None:
        yield f"images: {images.processor} is REFUSED, so train the model only on text"
        yield from (f"  {line}" for line in images.refused.splitlines())
        return
    yield f"images: {images.processor} is proved"
    yield f"  placeholder        {visible(images.placeholder)}"
    yield f"  media token        {visible(images.media_token)}"
    yield f"  roles              {', '.join(images.roles)}"
    sizes = (images.tokens or {}).items()
    counts = (f"{size}: {'refused' if n is None else f'{n:,}'}" for size, n in sizes)
    yield f"  tokens             {', '.join(counts)}"
    for note in images.notes:
        yield f"  note: {note}"


def _seams(seams: Sequence[SeamVerdict]) -> Iterator[str]:
    width = max(len(_name(seam)) for seam in seams)
    yield f"{'seams that are judged':<{width + 2}}  kind     exact"
    yield from _rows((seam for seam in seams if seam.decides), width)
    others = [seam for seam in seams if not seam.decides]
    if others:
        yield "seams next to a sample, not judged: a row keeps the tokens that were sampled,"
        yield "even if a tokenizer would write the same text differently"
        yield from _rows(others, width)


def _rows(seams: Iterable[SeamVerdict], width: int) -> Iterator[str]:
    for seam in seams:
        yield f"  {_name(seam):<{width}}  {seam.kind or '-':<7}  {_verdict(seam)}"
        if seam.reason is not None:
            why = seam.reason.splitlines()
            yield from (f"      {line}" for line in (why if seam.refused else why[:1]))
        for broken in seam.breaks:
            yield from _break(broken)


def _name(seam: SeamVerdict) -> str:
    return f"{seam.left} | {seam.right}"


def _verdict(seam: SeamVerdict) -> str:
    if seam.exact is None:
        return "REFUSED" if seam.refused else "no such seam"
    if not seam.decides:
        return f"{seam.broken} of {seam.tried} texts would get other tokens"
    if seam.exact:
        return "yes, for every text" if seam.proved else f"yes, for all {seam.tried} texts tried"
    return f"NO, not for {seam.broken} of {seam.tried} texts tried"


def _round_trips(trips: Sequence[RoundTrip]) -> Iterator[str]:
    yield "samples, as the template writes them"
    width = max(len(trip.name) for trip in trips)
    for trip in trips:
        if trip.broken:
            told = f"NO, {trip.broken} of {trip.tried} are parsed differently"
        elif trip.tried:
            told = f"all {trip.tried} are parsed as written"
        else:
            told = "not tried"
        yield f"  {trip.name:<{width}}  {'; '.join(filter(None, [told, trip.note]))}"
        for mistaken in trip.mistaken:
            yield f"      sample   {mistaken.sample!r}"
            yield f"      written  {mistaken.written!r}"
            yield f"      parsed   {mistaken.heard!r}"


def _break(broken: Break) -> Iterator[str]:
    written = f"{_tokens(broken.left)} | {_tokens(broken.right)}"
    ids = f"{_ids(broken.left_ids)} | {_ids(broken.right_ids)}"
    yield f"      appended   {written}   ({ids})"
    if broken.canonical_ids:
        yield f"      canonical  {_tokens(broken.canonical)}   ({_ids(broken.canonical_ids)})"
    else:
        yield "      canonical  none, because the seam is inside a character"


def _fuzz(fuzz: FuzzResult) -> Iterator[str]:
    compared = fuzz.against_render + fuzz.against_sent + fuzz.against_parts
    yield f"fuzz: {compared} of {fuzz.conversations} conversations are the same, seed {fuzz.seed}"
    yield f"  with messages of the roles {', '.join((*fuzz.roles, 'assistant'))}"
    yield f"  {fuzz.against_render} against the full render"
    yield (f"  {fuzz.against_sent} against the text that was sent, because the full render differs")
    yield (
        f"  {fuzz.against_parts} against one encode of their parts, because a content spells "
        "text that the render would turn into a control token or remove"
    )
    if fuzz.rewritten:
        yield (
            f"  in {fuzz.rewritten} the template rewrites earlier turns; a trajectory keeps what "
            "was sent"
        )
    if fuzz.merged:
        yield f"  in {fuzz.merged} a sample would merge with the text next to it; it stays separate"
    if fuzz.refused:
        yield f"  {fuzz.refused} were refused and drawn again, such as:"
        yield from (f"    {line}" for line in str(fuzz.refusal).splitlines())
    if fuzz.skipped:
        yield f"  {fuzz.skipped} skipped, because no draw could be compared"
    if (failure := fuzz.failure) is not None:
        cut = f", turns that were cut: {', '.join(map(str, failure.cut))}" if failure.cut else ""
        yield f"  DIFFERS: conversation {failure.number}, shortened{cut}"
        yield from (f"    {line}" for line in spelled_out(failure.messages))
        yield from (f"    {line}" for line in failure.problem.splitlines())


def _listed(tokens: Sequence[str]) -> str:
    more = f" and {len(tokens) - _NAMED} more" if len(tokens) > _NAMED else ""
    return " ".join(map(visible, tokens[:_NAMED])) + more


def _tokens(texts: Sequence[str]) -> str:
    return " ".join(map(repr, texts)) or "nothing"


def _ids(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids)) or "-"
