"use strict";
// The head of a rollout: what it earned, what it took, and how it ended.

function rolloutHead(rollout, actions) {
  const { row } = rollout;
  const where = row.group === null ? [] : [`group ${row.group}`, row.place === null ? null : `no. ${row.place}`];
  const name = [row.step === null ? null : `Step ${row.step}`, row.mode === "eval" ? "evaluation" : null, ...where];
  return make("header", { class: "rollout-head" },
    make("div", { class: "title" },
      make("h2", {}, name.filter(Boolean).join(" · ") || row.rollout_id),
      make("code", { class: "quiet" }, row.rollout_id),
      make("span", { class: `stop ${row.error ? "failed" : ""}` }, row.stop_reason ?? "no stop reason"),
      make("span", { class: "actions" }, actions)),
    make("div", { class: "facts" }, factsOf(rollout)),
    row.error ? errorBox(rollout) : null,
    timeChart(rollout));
}

/** The figures of a rollout; `only` those of these names. */
function factsOf(rollout, only = null) {
  const { row } = rollout;
  const rewards = Object.entries(row.rewards);
  const facts = [
    ["reward", figure(row.reward), "main"],
    ...rewards.filter(([name]) => name !== "env_reward" || rewards.length > 1).map(([name, value]) => [name, figure(value)]),
    ["advantage", row.advantage === null ? "–" : `${row.advantage > 0 ? "+" : ""}${figure(row.advantage, 3)}`, "main"],
    ["turns", figure(row.turns)],
    ["tokens", `${figure(row.tokens)}`],
    ["of them sampled", row.tokens ? `${figure(row.sampled_tokens)} (${Math.round(100 * row.sampled_tokens / row.tokens)} %)` : "0"],
    ["seams", row.seams ? `${row.seams}, ${row.inexact_seams ? `${row.inexact_seams} inexact` : "all exact"}` : "–"],
    ["seconds", seconds(row.seconds)],
    row.attempts > 1 ? ["attempts", figure(row.attempts)] : null,
  ];
  const shown = facts.filter((fact) => fact && (!only || only.includes(fact[0])));
  return make("dl", {}, shown.map(([name, value, kind]) =>
    make("div", { class: kind ?? "" }, make("dt", {}, name), make("dd", {}, value))));
}

function errorBox({ row, traceback }) {
  return make("div", { class: "error", role: "alert" }, make("p", {}, printable(row.error)),
    traceback ? make("details", {}, make("summary", {}, "Traceback"), make("pre", { tabindex: "0" }, printable(traceback))) : null);
}

/** Seconds of each turn, sampling below and the environment above; what is left of the whole last. */
function timeChart(rollout) {
  const turns = rollout.turns;
  const total = rollout.row.seconds;
  if (!turns.length) return null;
  const sampling = turns.reduce((sum, turn) => sum + (turn.generate_s ?? 0), 0);
  const env = turns.reduce((sum, turn) => sum + (turn.env_s ?? 0), 0);
  const waiting = total === null ? null : Math.max(0, total - sampling - env);
  const parts = turns.map((turn, k) => ({ turn: k, sampling: turn.generate_s ?? 0, env: turn.env_s ?? 0, waiting: 0 }));
  if (waiting) parts.push({ turn: null, sampling: 0, env: 0, waiting });
  const most = Math.max(...parts.map((part) => part.sampling + part.env + part.waiting), 1e-9);
  const legends = [["sampling", sampling], ["environment", env], ["waiting and all else", waiting]];
  return make("figure", { class: "time" },
    make("figcaption", {}, "Time ", legends.map(([name, value], k) => make("span", { class: `key k${k}` }, `${name} ${seconds(value)}`))),
    make("div", { class: "columns", role: "group", "aria-label": "Time of each turn" }, parts.map((part) => timeColumn(part, most))));
}

function timeColumn({ turn, sampling, env, waiting }, most) {
  const bar = (value, kind) => value > 0 && make("span", { class: `part ${kind}`, style: { height: `${100 * value / most}%` } });
  const parts = [bar(env, "k1"), bar(sampling, "k0"), bar(waiting, "k2")];
  if (turn === null) {
    return make("span", { class: "column rest", role: "img", "aria-label": `waiting and all else ${seconds(waiting)}`,
      title: `waiting and all else: ${seconds(waiting)}` }, parts);
  }
  const said = `Turn ${turn}: sampling ${seconds(sampling)}, environment ${seconds(env)}`;
  return button(parts, { class: "column", title: said, "aria-label": said, dataset: { turn } }, null);
}

/** What else is recorded, folded. */
function otherFacts(rollout) {
  const { row } = rollout;
  const entries = [
    ["dataset row", rollout.columns], ["extras", empty(rollout.extras)],
    ["control tokens that somebody spelled", empty(rollout.control_spellings)],
    ["rewrites by the client", empty(rollout.client_rewrites)],
    ["errors of attempts", empty(rollout.attempt_errors)],
    ["tracebacks of attempts", empty(rollout.attempt_tracebacks)],
    ["tokenizer", rollout.pieces.source], ["seed", row.seed], ["episode seed", row.episode_seed],
    ["run, rank", `${row.run_id ?? "–"}, ${row.rank ?? "–"}`],
    ["written", row.time === null ? null : new Date(1000 * row.time).toISOString().replace("T", " ").slice(0, 19) + " UTC"],
  ].filter(([, value]) => !isNone(value));
  return make("details", { class: "other" }, make("summary", {}, "What else is recorded"),
    make("dl", {}, entries.map(([name, value]) => make("div", {}, make("dt", {}, name),
      make("dd", {}, printable(typeof value === "string" ? value : JSON.stringify(value, null, 1)))))));
}

const empty = (value) => (value && Object.keys(value).length ? value : null);

/** The messages, for a rollout that has no tokens or no tokenizer. */
function messagesOf(rollout) {
  return make("div", { class: "messages" }, rollout.messages.map((message) => make("article", { class: "message" },
    make("h3", {}, message.role ?? "nobody"),
    make("div", { class: "message-text", dir: "auto" }, printable(messageText(rollout, message))),
    message.extra ? make("pre", { class: "quiet", tabindex: "0" }, printable(message.extra)) : null)));
}
