"use strict";
// What tokens say. A token is bytes, and often not whole characters: what a reader sees of it is
// decided here, and that nothing it holds can change what stands beside it.

const CONTROLS = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}\p{Cn}]/gu;
const JOINERS = new Set(["\u200d", "\u200c", "\ufe0e", "\ufe0f"]); // emoji and scripts need them

/** The pieces of one tokenizer: their bytes and ids, by number. */
class Pieces {
  constructor({ facts, bytes }) {
    this.source = facts.source;
    this.trouble = facts.trouble;
    this.ids = facts.ids;
    this.controls = new Set(facts.controls);
    this.bytes = [];
    let at = 0;
    for (const length of facts.lengths) this.bytes.push(bytes.subarray(at, at += length));
    this.texts = new Array(this.ids.length);
  }

  /** The text of a piece; null where its bytes are not whole characters, or unknown. */
  text(number) {
    let text = this.texts[number];
    if (text === undefined) text = this.texts[number] = wholeText(this.bytes[number]);
    return text;
  }

  /** The bytes of tokens behind each other. */
  join(numbers) {
    const joined = new Uint8Array(numbers.reduce((sum, n) => sum + this.bytes[n].length, 0));
    let at = 0;
    for (const number of numbers) {
      joined.set(this.bytes[number], at);
      at += this.bytes[number].length;
    }
    return joined;
  }
}

function wholeText(bytes) {
  if (!bytes.length) return null;
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return null;
  }
}

const lossyText = (bytes) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);

const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join(" ");

/**
 * What to show of each token from `first` to `last`: `{text, broken}`.
 *
 * Where a character takes several tokens, the last of them shows it and those before it their
 * bytes, so that every token is seen and the text stays readable.
 */
function shownTokens(pieces, numbers, first, last) {
  const shown = [];
  for (let token = first; token < last; token++) {
    const text = pieces.text(numbers[token]);
    if (text !== null) shown.push({ text, broken: false });
    else if (!pieces.bytes[numbers[token]].length) {
      shown.push({ text: `#${pieces.ids[numbers[token]]} `, broken: true });
    } else token = showBroken(pieces, numbers, token, last, shown) - 1;
  }
  return shown;
}

/** Tokens of parts of characters, up to where characters are whole again; returns that place. */
function showBroken(pieces, numbers, first, last, shown) {
  const most = Math.min(last, first + 8);
  for (let end = first + 2; end <= most; end++) {
    const whole = wholeText(pieces.join(numbers.subarray(first, end)));
    if (whole === null) continue;
    for (let token = first; token < end - 1; token++) {
      shown.push({ text: hexOf(pieces, numbers[token]), broken: true });
    }
    shown.push({ text: whole, broken: false });
    return end;
  }
  shown.push({ text: hexOf(pieces, numbers[first]), broken: true });
  return first + 1;
}

const hexOf = (pieces, number) =>
  Array.from(pieces.bytes[number], (byte) => `‹${byte.toString(16).padStart(2, "0")}›`).join("");

/** A text in which nothing is invisible or turns others around; line ends and tabs stay. */
function printable(text) {
  return text.replace(CONTROLS, (c) => {
    if (c === "\n" || c === "\t" || JOINERS.has(c)) return c;
    const code = c.codePointAt(0).toString(16);
    return c < "\u0100" ? `‹${code.padStart(2, "0")}›` : `‹u+${code.padStart(4, "0")}›`;
  });
}

const withMarks = (text) => text.replace(/ /g, "·").replace(/\t/g, "→\t").replace(/\n/g, "⏎\n");

/** A text of a conversation: where it stands among the bytes of its tokens, or as it is. */
function placedText(pieces, sequence, placed) {
  if (!Array.isArray(placed)) return placed;
  sequence.joined ??= pieces.join(sequence.numbers);
  const [start, length] = placed;
  return lossyText(sequence.joined.subarray(start, start + length));
}

/** All that a message of a rollout, or of a branch of it, says. */
function messageText(rollout, message, sequence = rollout) {
  const said = message.at ?? message.content;
  if (said !== undefined) return placedText(rollout.pieces, sequence, said);
  const blocks = Array.isArray(message.blocks) ? message.blocks : [message.blocks];
  return blocks.map((b) => (typeof b?.text === "string" ? b.text : "")).join("");
}
