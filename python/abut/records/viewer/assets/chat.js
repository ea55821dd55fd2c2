"use strict";
// A conversation as messages. What is thinking, and what is a call, was told when the rollout was
// played; a message of which nobody told it is text.

const SPEAKERS = { assistant: "policy", developer: "system" };

/** The messages of a sequence by turn: the prompt, then each turn with what was said to it. */
function chatSections(rollout, sequence) {
  const sections = [{ turn: null, messages: [] }];
  for (const message of sequence.messages) {
    if (message.turn !== undefined) sections.push({ turn: message.turn, messages: [] });
    sections.at(-1).messages.push(message);
  }
  return sections.filter(({ turn, messages }) => turn !== null || messages.length);
}

/** What a branch shares with the conversations that it forks from: `[sequence, message]`, in order. */
function messagesBefore(rollout, sequence) {
  if (sequence === rollout || !sequence.fork) return []; // the row has all of its messages
  const from = [rollout, ...rollout.branches][sequence.fork.from];
  const last = from.messages.findIndex(({ turn }) => turn === sequence.fork.turn);
  return [...messagesBefore(rollout, from), ...from.messages.slice(0, last + 1).map((message) => [from, message])];
}

/** The conversation of a row or a branch, as elements. */
function chatElements(rollout, sequence) {
  const before = messagesBefore(rollout, sequence);
  const folded = before.length && make("details", { class: "before" },
    make("summary", {}, `Before the fork: ${counted(before.length, "message")} of ${sequenceName(rollout, sequence.fork.from)}`),
    before.map(([of, message]) => messageElement(rollout, of, message)));
  const sections = chatSections(rollout, sequence);
  const elements = sections.map((section) => chatSection(rollout, sequence, section));
  if (!sequence.messages.length) elements.push(...textsOfTokens(rollout, sequence));
  return [toolsElement(sequence.tools), folded, ...elements].filter(Boolean);
}

function chatSection(rollout, sequence, { turn, messages }) {
  const isFork = sequence.fork && sequence !== rollout;
  const name = turn === null ? isFork ? "After the fork" : "Prompt" : `Turn ${turn}`;
  const facts = turn === null ? counted(messages.length, "message") : turnFacts(sequence.turns[turn], sequence.advantages?.[turn]);
  return make("section", { class: "turn", "aria-label": name, dataset: { turn: turn ?? "prompt" } },
    make("h3", {}, name, make("span", { class: "quiet" }, facts)),
    messages.map((message) => messageElement(rollout, sequence, message)));
}

function messageElement(rollout, sequence, message) {
  const { role } = message;
  const isSystem = role === "system" || role === "developer";
  const whole = messageText(rollout, message, sequence);
  const said = message.said === undefined ? whole : placedText(rollout.pieces, sequence, message.said);
  const parts = [
    message.thinking && thinkingElement(placedText(rollout.pieces, sequence, message.thinking)),
    picturesOf(rollout, message),
    said && (isSystem ? foldedText("System prompt", said) : longText(said, role === "tool")),
    (message.calls ?? []).map(callElement),
    message.extra && make("details", { class: "more" }, make("summary", {}, "Other keys"),
      make("pre", { tabindex: "0", class: "said" }, printable(message.extra))),
  ].flat().filter(Boolean);
  const speaker = [SPEAKERS[role] ?? role ?? "nobody", message.name].filter(Boolean).map((one) => printable(String(one)));
  return make("article", { class: "message", dataset: { role: role ?? "" } },
    make("div", { class: `speaker${isSystem ? " hidden" : ""}` }, speaker.join(" · ")),
    parts.length ? parts : make("p", { class: "quiet" }, "(nothing)"));
}

const thinkingElement = (text) => make("details", { class: "thinking" },
  make("summary", {}, "Thinking ", make("span", { class: "quiet" }, counted(text.length, "character"))),
  longText(text));

/** A long text of which only the beginning is of interest: its first line, until it is unfolded. */
function foldedText(name, text) {
  const first = text.trim().split("\n", 1)[0];
  return make("details", { class: "folded" },
    make("summary", {}, `${name} `, make("span", { class: "quiet" }, `${counted(text.length, "character")} · ${printable(first.slice(0, 80))}${first.length > 80 ? "…" : ""}`)),
    longText(text));
}

/** A call: its name, and each argument as text where it is one. */
function callElement({ name, arguments: given }) {
  const isObject = given && typeof given === "object" && !Array.isArray(given);
  const entries = isObject ? Object.entries(given) : [[null, given]];
  return make("div", { class: "call" },
    make("p", {}, make("span", { class: "quiet" }, "call "), make("code", { class: "said" }, printable(String(name ?? "without a name")))),
    make("dl", {}, entries.map(([key, value]) => make("div", {},
      make("dt", { class: "said" }, key === null ? "arguments" : printable(key)),
      make("dd", {}, longText(typeof value === "string" ? value : asJson(value), true))))));
}

/** A value of JSON: on one line where that is short. */
function asJson(value) {
  const line = JSON.stringify(value) ?? "none";
  return line.length <= 80 ? line : JSON.stringify(value, null, 2);
}

/** The schemas of the tools that the policy was shown. */
function toolsElement(tools) {
  if (!tools?.length) return null;
  const named = tools.map((tool) => tool?.function ?? tool);
  const names = named.map((one) => printable(String(one?.name ?? "?")));
  return make("details", { class: "tools folded" },
    make("summary", {}, "Tools ", make("span", { class: "quiet" }, `${tools.length}: ${names.join(", ")}`)),
    named.map((one, k) => make("div", { class: "tool" },
      make("div", { class: "speaker" }, make("code", { class: "said" }, names[k])),
      typeof one?.description === "string" ? longText(one.description) : null,
      longText(asJson(one?.parameters ?? one?.input_schema ?? one), true))));
}

/** The texts of a branch whose record holds tokens and no messages. */
function textsOfTokens(rollout, sequence) {
  if (rollout.pieces.trouble) return [];
  return [make("p", { class: "note" }, "The record holds no messages of this branch: these are the texts of its tokens."),
    ...sectionsOf(sequence).map(({ turn, first, last, sample }) => {
      const edges = sample ? [first, sample.end, last] : [first, last];
      const name = turn === null ? "Prompt" : `Turn ${turn}`;
      return make("section", { class: "turn", "aria-label": name, dataset: { turn: turn ?? "prompt" } }, make("h3", {}, name),
        edges.slice(1).map((end, k) => end > edges[k] && make("article", { class: "message", dataset: { role: sample && !k ? "assistant" : "" } },
          make("div", { class: "speaker" }, writerOf(sequence, edges[k], end)),
          longText(lossyText(rollout.pieces.join(sequence.numbers.subarray(edges[k], end)))))));
    })];
}

/** Why there are no tokens to show; null where there are. */
function whyNoTokens(rollout) {
  const { row } = rollout;
  if (row.tokens) return null;
  if (row.error) return "No tokens: the rollout failed, and its record keeps none of them.";
  if (rollout.turns.length) return "No tokens: the policy answered in messages, as a hosted model does, so nobody knows its tokens.";
  return "No tokens: nothing was sampled.";
}

const AT_ONCE_CHARS = 20_000;

/** A text that may have millions of characters: its beginning, until somebody asks for all. */
function longText(text, isCode = false) {
  const kind = `said message-text${isCode ? " code" : ""}`;
  const part = (chars) => make("div", { class: kind, dir: "auto" }, printable(chars));
  if (text.length <= AT_ONCE_CHARS) return part(text);
  const element = make("div", { class: "long" }, part(text.slice(0, AT_ONCE_CHARS)));
  const showAll = () => {
    // In parts, of which those out of sight are not laid out; each ends with a line where it can.
    const parts = text.match(/[^]{1,20000}(?:\n|$)|[^]{1,20000}/g);
    element.replaceChildren(...parts.map(part));
  };
  element.append(button(`Show all ${figure(text.length)} characters`, {}, showAll));
  UNSHOWN.set(element, { text, showAll });
  return element;
}

const UNSHOWN = new WeakMap(); // the whole text of elements that show its beginning
