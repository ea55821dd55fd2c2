"use strict";
// The conversations of a rollout as a tree: below each one those that fork from it.

/** The name of a conversation: 0 is the row, others are branches. */
function sequenceName(rollout, number) {
  const { name } = number ? rollout.branches[number - 1] : rollout;
  return [number ? `Branch ${number}` : "Row", name && printable(name)].filter(Boolean).join(" · ");
}

function branchTree(rollout, chosen, open) {
  const all = [rollout, ...rollout.branches];
  const below = (from) => [...all.keys()].filter((k) => (all[k].fork?.from ?? null) === from);
  const list = (numbers) => make("ul", {}, numbers.map((number) => {
    const forks = below(number).sort((a, b) => all[a].fork.turn - all[b].fork.turn);
    return make("li", {}, branchButton(rollout, number, chosen, open), " ",
      make("span", { class: "quiet" }, branchFacts(rollout, all[number])),
      forks.length ? list(forks) : null);
  }));
  return make("div", { class: "branches", role: "group", "aria-label": "Branches" }, list(below(null)));
}

function branchButton(rollout, number, chosen, open) {
  const sequence = number ? rollout.branches[number - 1] : rollout;
  const isDropped = sequence.delivered === false || sequence.followed === false;
  const said = [sequenceName(rollout, number), number ? sequence.cause : null,
    sequence.delivered === false && "not delivered",
    sequence.delivered !== false && sequence.followed === false && "not followed"];
  return button(said.filter(Boolean).join(" · "),
    { class: isDropped ? "dropped" : null, "aria-pressed": String(number === chosen) }, () => open(number));
}

function branchFacts(rollout, { fork, turns, tokens, reward, row_reward, trained, row_trained, auxiliary }) {
  const own = reward !== undefined && turns !== rollout.turns ? reward : row_reward;
  return [
    fork ? `forks from ${sequenceName(rollout, fork.from)} after turn ${fork.turn}` : null,
    counted(turns.length, "turn"), counted(tokens, "token"),
    isNone(own) ? null : `reward ${figure(own)}`,
    auxiliary ? "auxiliary" : null,
    trained === false || row_trained === false ? "not trained" : null,
  ].filter(Boolean).join(", ");
}
