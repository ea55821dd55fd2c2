"use strict";
// Two rollouts of a group side by side, turn by turn, with the first token of each turn that differs.

/** The first place at which two spans of tokens differ, as an offset; null: they are equal. */
function firstDifference(a, aSpan, b, bSpan) {
  const id = ({ pieces, numbers }, token) => pieces.ids[numbers[token]];
  const [aLength, bLength] = [aSpan.last - aSpan.first, bSpan.last - bSpan.first];
  for (let k = 0; k < Math.min(aLength, bLength); k++) {
    if (id(a, aSpan.first + k) !== id(b, bSpan.first + k)) return k;
  }
  return aLength === bLength ? null : Math.min(aLength, bLength);
}

class CompareView {
  constructor(element, hooks) {
    this.element = element;
    this.hooks = hooks;
    this.tokens = make("div", { class: "tokens side-by-side", tabindex: "0", role: "group", "aria-label": "Tokens of both rollouts" });
    hooks.watch(this.tokens, (target) => this.sides?.find(({ text }) => text.token(target) !== null)?.text);
  }

  show(left, right, { mode, options }) {
    this.sides = [left, right].map((rollout) => ({
      rollout, text: new TokenText(rollout.pieces, rollout, options), sections: sectionsOf(rollout),
    }));
    this.differences = [];
    this.tokens.dataset.mode = MODES[mode - 1];
    const turns = Math.max(...this.sides.map(({ sections }) => sections.length));
    const rows = [];
    for (let k = 0; k < turns; k++) rows.push(...this.pair(k));
    this.tokens.replaceChildren(...rows);
    const first = this.differences[0];
    const said = !first ? "Both have the same tokens."
      : `They part at token ${first.token} (${first.turn === null ? "in the prompt" : `turn ${first.turn}`}).`;
    this.element.replaceChildren(
      make("header", { class: "rollout-head" },
        make("div", { class: "title" }, make("h2", {}, "Two rollouts side by side"), make("span", { class: "actions" }, this.hooks.partners(left, right))),
        make("p", { class: "parted", role: "status" }, said,
          first ? button("Go there", {}, () => this.go(0)) : null),
        make("div", { class: "side-by-side heads" }, this.sides.map(({ rollout }) => this.head(rollout)))),
      make("div", { class: "reading-bar" }, this.hooks.toolbar()), this.tokens);
    this.at = -1;
  }

  head(rollout) {
    const { row } = rollout;
    return make("div", {}, make("p", {}, make("code", {}, row.rollout_id)), make("div", { class: "facts" }, factsOf(rollout, ["reward", "advantage", "turns", "tokens", "seams"])));
  }

  /** The k-th section of both, the first token that differs marked. */
  pair(k) {
    const spans = this.sides.map(({ sections }) => sections[k]);
    const cells = this.sides.map(({ rollout, text }, side) => (spans[side]
      ? sectionElement(rollout, rollout, spans[side], text, { side: side ? "Right, " : "Left, " })
      : make("section", { class: "turn absent" }, make("h3", {}, "no such turn"))));
    const [a, b] = this.sides.map(({ rollout }) => rollout);
    const offset = spans[0] && spans[1] ? firstDifference(a, spans[0], b, spans[1]) : 0;
    if (offset === null) return cells;
    const { turn, first } = spans[0] ?? spans[1];
    const tokens = spans.map((span) => (span ? span.first + offset : null));
    this.differences.push({ turn, token: first + offset, tokens });
    this.sides.forEach(({ text }, side) => {
      const span = tokens[side] === null ? null : text.span(tokens[side]);
      span?.classList.add("differs");
      if (this.differences.length === 1) span?.classList.add("first");
    });
    return cells;
  }

  go(index) {
    if (!this.differences.length) return;
    this.at = (index + this.differences.length) % this.differences.length;
    const { tokens, token } = this.differences[this.at];
    this.sides.forEach(({ text }, side) => text.point(tokens[side], { scroll: side === 0 || tokens[0] === null }));
    this.hooks.said(`difference ${this.at + 1} of ${this.differences.length}, token ${token}`);
  }

  next(by) {
    this.go(this.at < 0 && by < 0 ? -1 : this.at + by);
  }
}
