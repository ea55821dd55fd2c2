"use strict";
// One rollout: its head, its branches, and its tokens by turn, with a row for each seam.

const isOneRollout = (view) => view === "tokens" || view === "chat";

/** How a rollout is shown if its address does not say. */
const plainView = (row) => (!row || row.tokens ? "tokens" : "chat");

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
    make("h3", {}, name, make("span", { class: "quiet" }, turn === null ? counted(last - first, "token") : turnFacts(sample, sequence.advantages?.[turn], section))),
    parts);
}

/** The facts of a turn; with its `section` those of its tokens too. */
function turnFacts(sample, advantage, section = null) {
  const facts = [
    section ? `${counted(sample.end - sample.start, "token")} from ${section.first} on` : null,
    isNone(sample.generate_s) ? null : `sampled in ${seconds(sample.generate_s)}`,
    section && sample.end < section.last ? `${figure(section.last - sample.end)} behind` : null,
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
    this.chat = make("div", { class: "chat" });
    this.find = new Find(hooks.said);
    hooks.watch(this.tokens, () => this.text);
  }

  /** Show a rollout, or a branch of it (from 1; 0 is the row), as tokens or as a chat. */
  show(rollout, { branch, mode, options, asChat }) {
    this.rollout = rollout;
    const sequence = branch ? rollout.branches[branch - 1] : rollout;
    this.sequence = sequence;
    this.body = asChat ? this.chat : this.tokens;
    this.sections = sectionsOf(sequence);
    this.text = asChat ? null : new TokenText(rollout.pieces, sequence, options);
    this.tokens.dataset.mode = MODES[mode - 1];
    this.body.replaceChildren(...(asChat ? chatElements(rollout, sequence) : this.tokenElements()));
    this.element.replaceChildren(
      rolloutHead(rollout, this.hooks.actions(rollout)),
      ...(rollout.branches.length ? [branchTree(rollout, branch, (number) => this.hooks.branch(number))] : []),
      make("div", { class: "reading-bar" }, asChat || !sequence.tokens ? null : this.hooks.toolbar(), this.find.element),
      this.body,
      otherFacts(rollout));
    this.find.attach(this.body);
    for (const column of this.element.querySelectorAll(".column[data-turn]")) {
      column.addEventListener("click", () => this.goToTurn(Number(column.dataset.turn)));
    }
  }

  tokenElements() {
    const { rollout, sequence } = this;
    const notes = [];
    if (rollout.pieces.trouble && sequence.tokens) {
      notes.push(make("p", { class: "note" }, `Tokens are shown as ids: ${printable(rollout.pieces.trouble)} `, this.hooks.toChat()));
    }
    const missing = sequence.tokens ? null : whyNoTokens(rollout);
    if (missing) notes.push(make("p", { class: "note" }, `${missing} `, this.hooks.toChat()));
    const unplaced = (sequence.seams ?? []).filter((seam) => seam.token === null);
    if (unplaced.length) {
      const inexact = unplaced.filter((seam) => !seam.exact).length;
      notes.push(make("p", { class: "quiet" },
        `${counted(unplaced.length, "seam")} of what is not in the row${inexact ? `, ${inexact} of them inexact` : ""}.`));
    }
    return [...this.sections.map((section) => sectionElement(rollout, sequence, section, this.text)), ...notes];
  }

  /** Where a reader is: the turn at the top, and how much of it is above; null: above all turns. */
  place() {
    const top = this.top();
    const turn = this.turnElements().findLast((one) => one.getBoundingClientRect().top <= top + 2);
    if (!turn) return null;
    const box = turn.getBoundingClientRect();
    return { turn: turn.dataset.turn, share: Math.max(0, top - box.top) / box.height };
  }

  /** Bring a turn to the top, as `place` said it; again where blocks turn out to be of other heights. */
  goTo(place, frames = 20) {
    const turn = this.turnElements().find((one) => one.dataset.turn === place.turn);
    if (!turn) return;
    const box = turn.getBoundingClientRect();
    byId("main").scrollTop += box.top + place.share * box.height - this.top();
    const ticket = this.going = frames === 20 ? {} : this.going;
    if (frames) requestAnimationFrame(() => ticket === this.going && this.goTo(place, frames - 1));
  }

  turnElements() {
    return [...this.body.children].filter((one) => one.dataset.turn !== undefined);
  }

  /** The first pixel below what always stays in sight. */
  top() {
    return byId("main").getBoundingClientRect().top + this.find.element.parentElement.offsetHeight;
  }

  goToTurn(turn) {
    const section = this.sections.find((one) => one.turn === turn);
    if (this.text) this.hooks.point(section?.first);
    else this.goTo({ turn: String(turn ?? "prompt"), share: 0 });
  }

  /** In a chat, bring the next turn to the top (`by` 1) or the one before (-1). */
  stepTurn(by) {
    const turns = this.turnElements();
    const top = this.top();
    const tops = turns.map((one) => one.getBoundingClientRect().top - top);
    const at = by > 0 ? tops.findIndex((one) => one > 4) : tops.findLastIndex((one) => one < -4);
    if (at >= 0) this.goTo({ turn: turns[at].dataset.turn, share: 0 });
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
