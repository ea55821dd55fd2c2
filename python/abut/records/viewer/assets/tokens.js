"use strict";
// Tokens as spans, in blocks. A block that is out of sight is neither styled nor laid out
// (`content-visibility`), and in a long rollout it is plain text until it comes near: so 100,000
// tokens scroll as a thousand do, and the browser still finds text in all of them.

const MODES = ["mask", "surprisal", "role", "tokens", "teacher"]; // the last one where there is one
const BINS = [0, 0.1, 0.5, 1, 2, 4, 8]; // nats; in each one from its edge up to the next
const BLOCK_TOKENS = 384; // where the text has a line end there, else more
const LINE_HEIGHT = 25;
const AT_ONCE = 4_000; // tokens up to which all spans are made right away

const binOf = (nats) => BINS.findLastIndex((edge) => nats >= edge);

/** A sequence of tokens as the page shows it: where its spans are, and which one is current. */
class TokenText {
  constructor(pieces, sequence, options) {
    this.pieces = pieces;
    this.sequence = sequence;
    this.options = options;
    this.blocks = []; // by their first token
    this.byElement = new Map();
    this.current = null;
    this.near = sequence.tokens <= AT_ONCE ? null : new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) if (isIntersecting) this.fill(this.byElement.get(target));
    }, { root: byId("main"), rootMargin: "1000px" });
  }

  /** The tokens from `first` to `last` as an element. */
  segment(first, last) {
    const { numbers } = this.sequence;
    const element = make("div", { class: "segment", dir: "ltr" });
    let begin = first;
    for (let token = first; token < last; token++) {
      const length = token + 1 - begin;
      if (token + 1 < last && !this.mayBreak(numbers, token, length)) continue;
      element.append(this.block(begin, token + 1));
      begin = token + 1;
    }
    return element;
  }

  /** Whether a block of this length may end here: on a line end, else between words or characters. */
  mayBreak(numbers, token, length) {
    if (length < BLOCK_TOKENS) return false;
    const text = this.pieces.text(numbers[token]);
    if (text?.endsWith("\n")) return true;
    if (length < 2 * BLOCK_TOKENS || text === null) return false;
    return length >= 3 * BLOCK_TOKENS || Boolean(this.pieces.text(numbers[token + 1])?.startsWith(" "));
  }

  block(first, last) {
    const element = make("div", { class: "block" });
    const block = { first, last, element, isFilled: false };
    this.blocks.push(block);
    this.byElement.set(element, block);
    if (!this.near) this.fill(block);
    else {
      const text = printable(lossyText(this.pieces.join(this.sequence.numbers.subarray(first, last))));
      element.textContent = text;
      // What the browser takes its height for until it has seen it.
      const lines = text.split("\n").reduce((sum, line) => sum + Math.ceil((line.length + 1) / 90), 0);
      element.style.setProperty("contain-intrinsic-block-size", `auto ${lines * LINE_HEIGHT}px`);
      this.near.observe(element);
    }
    return element;
  }

  /** Make the spans of a block. */
  fill(block) {
    if (block.isFilled) return;
    const { first, last, element } = block;
    block.shown = shownTokens(this.pieces, this.sequence.numbers, first, last);
    element.replaceChildren(...block.shown.flatMap(({ text, broken }, k) => {
      const span = document.createElement("span");
      span.className = this.classes(first + k, broken);
      // A line end stands behind its span: inside, the span would go on at the start of the next line.
      return text.endsWith("\n") ? [span, "\n"] : [span];
    }));
    block.isFilled = true;
    this.draw(block);
    this.near?.unobserve(element);
  }

  draw({ first, element, shown }) {
    shown.forEach(({ text }, k) => {
      const span = element.children[k];
      span.textContent = shownText(text, this.options).replace(/\n$/, "");
      if (this.options.ids) span.dataset.id = this.pieces.ids[this.sequence.numbers[first + k]];
      else delete span.dataset.id;
    });
  }

  /** Show what the options say now. */
  redraw() {
    for (const block of this.blocks) if (block.isFilled) this.draw(block);
  }

  classes(token, broken) {
    const { numbers, provenance, mask } = this.sequence;
    let classes = `p${provenance[token]} ${mask[token] ? "on" : "off"} ${token % 2 ? "odd" : "even"}`;
    const nats = surprisalOf(this.sequence, token);
    if (nats !== null) classes += ` b${binOf(nats)}`;
    const divergence = divergenceOf(this.sequence, token);
    if (divergence !== null) classes += ` ${divergence < 0 ? "l" : "u"}${binOf(Math.abs(divergence))}`;
    if (broken) classes += " broken";
    if (this.pieces.controls.has(numbers[token])) classes += " control";
    return classes;
  }

  span(token) {
    let low = 0, high = this.blocks.length - 1;
    while (low <= high) {
      const middle = (low + high) >> 1;
      const block = this.blocks[middle];
      if (token < block.first) high = middle - 1;
      else if (token >= block.last) low = middle + 1;
      else {
        this.fill(block);
        return block.element.children[token - block.first];
      }
    }
    return null;
  }

  /** The token of a span; null where the element is none of ours. */
  token(span) {
    const block = this.byElement.get(span.parentElement);
    return block ? block.first + Array.prototype.indexOf.call(block.element.children, span) : null;
  }

  /** Mark a token as the current one and bring it into sight; null: none. */
  point(token, { scroll = true } = {}) {
    this.span(this.current)?.classList.remove("current");
    this.current = token;
    const span = token === null ? null : this.span(token);
    span?.classList.add("current");
    if (scroll && span) bringIntoSight(span);
    return span;
  }
}

/** Scroll to a span, and again where blocks on the way turn out to be higher than they were taken for. */
function bringIntoSight(span, frames = 20) {
  const { top, bottom } = byId("main").getBoundingClientRect();
  const box = span.getBoundingClientRect();
  if (frames === 20 || box.top < top || box.bottom > bottom) span.scrollIntoView({ block: "center" });
  if (frames) requestAnimationFrame(() => span.matches(".current") && bringIntoSight(span, frames - 1));
}

/** The text of a span. A line end alone has a mark always: nobody sees a token of nothing. */
function shownText(text, { spaces }) {
  return spaces || /^\n+$/.test(text) ? withMarks(printable(text)) : printable(text);
}

/** The card of a token: what it is, byte for byte. */
function tokenCard(text, token, turn) {
  const { pieces, sequence } = text;
  const number = sequence.numbers[token];
  const nats = surprisalOf(sequence, token);
  const most = nats !== null && nats * 1000 >= UNKNOWN_SURPRISAL;
  const said = pieces.text(number);
  const divergence = divergenceOf(sequence, token);
  const facts = [
    ["id", String(pieces.ids[number])],
    ["bytes", pieces.bytes[number].length ? hex(pieces.bytes[number]) : "unknown"],
    ["logprob", nats === null ? "– not sampled" : `${most ? "≤ " : ""}${(-nats).toFixed(3)} nats`],
    ["p", nats === null ? "–" : probability(nats)],
    ...(divergence === null ? [] : [["teacher", ofTeacher(divergence)]]),
    ["place", `token ${token}${turn === null ? ", prompt" : `, turn ${turn}`}`],
    ["written by", `${provenanceNames[sequence.provenance[token]]}${sequence.mask[token] ? ", trained" : ""}`],
  ];
  return [
    make("p", { class: "card-text" }, said === null ? "part of a character" : withMarks(printable(said)) || "(nothing)",
      pieces.controls.has(number) ? make("em", {}, " control token") : null),
    make("dl", {}, facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))),
  ];
}

function probability(nats) {
  const share = 100 * Math.exp(-nats);
  return share >= 0.01 ? `${Number(share.toPrecision(4))} %` : Math.exp(-nats).toExponential(2);
}

/** How a teacher finds a token, beside the policy. */
function ofTeacher(divergence) {
  if (Math.abs(divergence) < BINS[1]) return "as likely";
  return `${Math.abs(divergence).toFixed(3)} nats ${divergence > 0 ? "less" : "more"} likely`;
}

/** What the colours and lines mean, for the mode that is on. */
function legend(mode) {
  const sample = (classes, text) => make("span", { class: `sample ${classes}` }, text);
  if (mode === "mask") return [sample("on", "sampled"), sample("off", "not trained")];
  if (mode === "role") return provenanceNames.map((name, k) => sample(`p${k}`, roleNames[name] ?? name));
  if (mode === "tokens") return [sample("even", "one"), sample("odd", "other"), sample("even control", "control")];
  const bins = (letter, from) => BINS.slice(from).map((edge, k) => make("span", { class: `bin ${letter}${k + from} on` }, `${edge}`));
  if (mode === "teacher") {
    return [make("span", {}, "teacher: nats less likely"), ...bins("u", 0), make("span", {}, "more likely"), ...bins("l", 1)];
  }
  const edges = bins("b", 0);
  return [make("span", {}, "nats from"), ...edges, make("span", {}, "up")];
}

const roleNames = { prompt: "prompt", env: "environment", scaffold: "template", sampled: "policy", close: "closed for it" };
let provenanceNames = Object.keys(roleNames); // as the records count them; the page's head says
