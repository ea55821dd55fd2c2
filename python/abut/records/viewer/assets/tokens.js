"use strict";
// Tokens as spans, in blocks. A block that is out of sight is neither styled nor laid out
// (`content-visibility`), which is what lets 100,000 tokens scroll; all of them are in the page, so
// that the browser finds text in them.

const MODES = ["mask", "surprisal", "role", "tokens"];
const BINS = [0, 0.1, 0.5, 1, 2, 4, 8]; // nats; in each one from its edge up to the next
const BLOCK_TOKENS = 384; // where the text has a line end there, else twice as many
const LINE_HEIGHT = 25;

const binOf = (nats) => BINS.findLastIndex((edge) => nats >= edge);

/** A sequence of tokens as the page shows it: where its spans are, and which one is current. */
class TokenText {
  constructor(pieces, sequence) {
    this.pieces = pieces;
    this.sequence = sequence;
    this.blocks = []; // by their first token
    this.byElement = new Map();
    this.current = null;
  }

  /** The tokens from `first` to `last` as an element. */
  segment(first, last, options) {
    const element = make("div", { class: "segment", dir: "ltr" });
    const shown = shownTokens(this.pieces, this.sequence.numbers, first, last);
    let begin = first;
    for (let token = first; token < last; token++) {
      const length = token + 1 - begin;
      const breaks = shown[token - first].text.endsWith("\n");
      if (token + 1 < last && !(length >= BLOCK_TOKENS && breaks) && length < 2 * BLOCK_TOKENS) continue;
      element.append(this.block(begin, token + 1, shown.slice(begin - first, token + 1 - first), options));
      begin = token + 1;
    }
    return element;
  }

  block(first, last, shown, options) {
    const element = make("div", { class: "block", dataset: { first } });
    let chars = 0, lines = 0;
    for (let token = first; token < last; token++) {
      const { text, broken } = shown[token - first];
      const span = document.createElement("span");
      span.className = this.classes(token, broken);
      span.textContent = shownText(text, options);
      if (options.ids) span.dataset.id = this.pieces.ids[this.sequence.numbers[token]];
      element.append(span);
      chars += text.length;
      lines += text.includes("\n") ? 1 : 0;
    }
    // What the browser takes its height for until it has seen it.
    const height = (lines + Math.ceil(chars / 90)) * LINE_HEIGHT;
    if (last - first >= BLOCK_TOKENS) element.style.setProperty("contain-intrinsic-block-size", `auto ${height}px`);
    this.blocks.push({ first, last, element, shown });
    this.byElement.set(element, first);
    return element;
  }

  classes(token, broken) {
    const { numbers, provenance, mask } = this.sequence;
    let classes = `p${provenance[token]} ${mask[token] ? "on" : "off"} ${token % 2 ? "odd" : "even"}`;
    const nats = surprisalOf(this.sequence, token);
    if (nats !== null) classes += ` b${binOf(nats)}`;
    if (broken) classes += " broken";
    if (this.pieces.controls.has(numbers[token])) classes += " control";
    return classes;
  }

  /** Show white space and ids, or no longer. */
  redraw(options) {
    for (const { first, element, shown } of this.blocks) {
      shown.forEach(({ text }, k) => {
        const span = element.children[k];
        span.textContent = shownText(text, options);
        if (options.ids) span.dataset.id = this.pieces.ids[this.sequence.numbers[first + k]];
        else delete span.dataset.id;
      });
    }
  }

  span(token) {
    let low = 0, high = this.blocks.length - 1;
    while (low <= high) {
      const middle = (low + high) >> 1;
      const { first, last, element } = this.blocks[middle];
      if (token < first) high = middle - 1;
      else if (token >= last) low = middle + 1;
      else return element.children[token - first];
    }
    return null;
  }

  /** The token of a span; null where the element is none of ours. */
  token(span) {
    const block = span.parentElement;
    const first = this.byElement.get(block);
    return first === undefined ? null : first + Array.prototype.indexOf.call(block.children, span);
  }

  /** Mark a token as the current one and bring it into sight; null: none. */
  point(token, { scroll = true } = {}) {
    this.span(this.current)?.classList.remove("current");
    this.current = token;
    const span = token === null ? null : this.span(token);
    span?.classList.add("current");
    if (scroll) span?.scrollIntoView({ block: "center" });
    return span;
  }
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
  const facts = [
    ["id", String(pieces.ids[number])],
    ["bytes", pieces.bytes[number].length ? hex(pieces.bytes[number]) : "unknown"],
    ["logprob", nats === null ? "– not sampled" : `${most ? "≤ " : ""}${(-nats).toFixed(3)} nats`],
    ["p", nats === null ? "–" : probability(nats)],
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

/** What the colours and lines mean, for the mode that is on. */
function legend(mode) {
  const sample = (classes, text) => make("span", { class: `sample ${classes}` }, text);
  if (mode === "mask") return [sample("on", "sampled"), sample("off", "not trained")];
  if (mode === "role") return provenanceNames.map((name, k) => sample(`p${k}`, roleNames[name] ?? name));
  if (mode === "tokens") return [sample("even", "one"), sample("odd", "other"), sample("even control", "control")];
  const edges = BINS.map((edge, k) => make("span", { class: `bin b${k} on` }, `${edge}`));
  return [make("span", {}, "nats from"), ...edges, make("span", {}, "up")];
}

const roleNames = { prompt: "prompt", env: "environment", scaffold: "template", sampled: "policy", close: "closed for it" };
let provenanceNames = Object.keys(roleNames); // as the records count them; the page's head says
