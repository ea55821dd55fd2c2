"use strict";
// One rollout: its head, its branches, and its tokens by turn, with a row for each seam.

/** The parts of a sequence: the prompt, then each turn with what was said to it. */
function sectionsOf(sequence) {
  const samples = samplesOf(sequence);
  const sections = [];
  const begin = samples.length ? samples[0].start : sequence.tokens;
  if (begin) sections.push({ turn: null, first: 0, last: begin, sample: null });
  samples.forEach((sample, turn) => {
    const last = turn + 1 < samples.length ? samples[turn + 1].start : sequence.tokens;
    sections.push({ turn, first: sample.start, last, sample });
  });
  return sections;
}

/** The turn that a token belongs to; null for the prompt. */
function turnOf(sections, token) {
  return sections.findLast((section) => section.first <= token)?.turn ?? null;
}

/** A section as an element: segments where somebody else writes or a seam is, seams between. */
function sectionElement(rollout, sequence, section, text, { side = "" } = {}) {
  const { first, last, turn, sample } = section;
  const seams = (sequence.seams ?? []).map((seam, number) => ({ ...seam, number }));
  const here = seams.filter(({ token }) => token !== null && token >= first && token < last);
  const pictures = (sequence.images ?? []).filter(({ start }) => start >= first && start < last);
  const edges = new Set([first, last, ...here.map(({ token }) => token), ...pictures.flatMap(({ start, end }) => [start, end])]);
  if (sample) edges.add(sample.end);
  const places = [...edges].filter((place) => place <= last).sort((a, b) => a - b);
  const parts = [];
  for (let k = 0; k + 1 < places.length; k++) {
    for (const seam of here.filter(({ token }) => token === places[k])) {
      parts.push(seamRow({ ...rollout, ...sequence }, seam, seam.number));
    }
    const picture = pictures.find(({ start }) => start === places[k]);
    const tokens = text.segment(places[k], places[k + 1]);
    parts.push(make("div", { class: "piece" },
      make("span", { class: "writer" }, writerOf(sequence, places[k], places[k + 1])),
      picture ? make("div", { class: "pictured" }, pictureOf(rollout, picture),
        make("div", { class: "media", tabindex: "0", role: "group", "aria-label": "Tokens of the image" }, tokens)) : tokens));
  }
  const name = turn === null ? "Prompt" : `Turn ${turn}`;
  return make("section", { class: "turn", "aria-label": side + name, dataset: { turn: turn ?? "prompt" } },
    make("h3", {}, name, make("span", { class: "quiet" }, turn === null ? counted(last - first, "token") : turnFacts(section, sequence.advantages?.[turn]))),
    parts);
}

function turnFacts({ first, last, sample }, advantage) {
  const facts = [
    `${counted(sample.end - sample.start, "token")} from ${first} on`,
    isNone(sample.generate_s) ? null : `sampled in ${seconds(sample.generate_s)}`,
    sample.end < last ? `${figure(last - sample.end)} behind` : null,
    isNone(sample.env_s) ? null : `environment ${seconds(sample.env_s)}`,
    isNone(sample.reward) ? null : `reward ${figure(sample.reward)}`,
    isNone(advantage) ? null : `advantage ${signed(advantage)}`,
    sample.finish_reason ? `ended by ${sample.finish_reason}` : null,
    sample.stop_string ? `on ${JSON.stringify(sample.stop_string)}` : null,
    sample.model_version ? `weights ${sample.model_version}` : null,
  ];
  return facts.filter(Boolean).join(" · ");
}

/** Who wrote most of these tokens, in the margin: so it can be read without colours. */
function writerOf(sequence, first, last) {
  const counts = new Map();
  for (let token = first; token < last; token++) {
    const who = provenanceNames[sequence.provenance[token]];
    // The template writes around what others say, and is named only where nobody says anything.
    counts.set(who, (counts.get(who) ?? 0) + (who === "scaffold" ? 0.001 : 1));
  }
  const [who] = [...counts].sort((a, b) => b[1] - a[1])[0] ?? ["?"];
  return roleNames[who] ?? who;
}

class RolloutView {
  constructor(element, hooks) {
    this.element = element;
    this.hooks = hooks;
    this.tokens = make("div", { class: "tokens", tabindex: "0", role: "group", "aria-label": "Tokens: arrow keys go from one to the next" });
    hooks.watch(this.tokens, () => this.text);
  }

  /** Show a rollout, or a branch of it (from 1; 0 is the row). */
  show(rollout, { branch, mode, options }) {
    this.rollout = rollout;
    const sequence = branch ? rollout.branches[branch - 1] : rollout;
    this.sequence = sequence;
    this.text = new TokenText(rollout.pieces, sequence, options);
    this.sections = sectionsOf(sequence);
    this.tokens.dataset.mode = MODES[mode - 1];
    this.tokens.replaceChildren(...this.body());
    this.element.replaceChildren(
      rolloutHead(rollout, this.hooks.actions(rollout)),
      ...(rollout.branches.length ? [this.tabs(branch)] : []),
      this.hooks.toolbar(),
      this.tokens,
      otherFacts(rollout));
    for (const column of this.element.querySelectorAll(".column[data-turn]")) {
      column.addEventListener("click", () => this.goToTurn(Number(column.dataset.turn)));
    }
  }

  body() {
    const { rollout, sequence } = this;
    const notes = [];
    if (rollout.pieces.trouble) {
      notes.push(make("p", { class: "note" }, `Tokens are shown as ids: ${printable(rollout.pieces.trouble)}`));
    }
    if (!sequence.tokens || rollout.pieces.trouble || !sequence.mask.includes(1)) notes.push(messagesOf(rollout));
    const unplaced = (sequence.seams ?? []).filter((seam) => seam.token === null);
    if (unplaced.length) {
      const inexact = unplaced.filter((seam) => !seam.exact).length;
      notes.push(make("p", { class: "quiet" },
        `${counted(unplaced.length, "seam")} of what is not in the row${inexact ? `, ${inexact} of them inexact` : ""}.`));
    }
    return [...this.sections.map((section) => sectionElement(rollout, sequence, section, this.text)), ...notes];
  }

  tabs(branch) {
    const names = [this.rollout, ...this.rollout.branches].map((one, k) => [
      k ? `Branch ${k}` : "Row", one.name && printable(one.name), one.cause, one.delivered === false && "not delivered",
    ].filter(Boolean).join(" · "));
    return make("div", { class: "branches", role: "group", "aria-label": "Branches" }, names.map((name, k) =>
      button(name, { "aria-pressed": String(k === branch) }, () => this.hooks.branch(k))));
  }

  goToTurn(turn) {
    const section = this.sections.find((one) => one.turn === turn);
    if (!section) return;
    this.hooks.point(section.first);
  }

  /** The next turn from the current token on (`by` 1) or the one before (-1). */
  turnFrom(token, by) {
    const starts = this.sections.map((section) => section.first);
    if (token === null) return by > 0 ? starts.find((start) => start > 0) ?? starts[0] : starts.at(-1);
    return by > 0 ? starts.find((start) => start > token) : starts.findLast((start) => start < token);
  }

  /** The token behind the next inexact seam, or before; undefined: there is none. */
  seamFrom(token, by) {
    const places = (this.sequence.seams ?? []).filter((seam) => !seam.exact && seam.token !== null).map((seam) => seam.token);
    const from = token ?? -1;
    return by > 0 ? places.find((place) => place > from) ?? places[0] : places.findLast((place) => place < from) ?? places.at(-1);
  }
}
