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
    ["reward", figure(row.total), "main"],
    ...rewards.filter(([name]) => name !== "env_reward" || rewards.length > 1).map(([name, value]) => [name, figure(value)]),
    ["advantage", row.advantage === null ? "–" : signed(row.advantage), "main"],
    ["turns", figure(row.turns)],
    ...tokenFacts(rollout),
    rollout.has_teacher ? ["reverse KL", `${figure(meanDivergence(rollout), 3)} nats`] : null,
    ["seams", row.seams ? `${row.seams}, ${row.inexact_seams ? `${row.inexact_seams} inexact` : "all exact"}` : "–"],
    ["seconds", seconds(row.seconds)],
    row.attempts > 1 ? ["attempts", figure(row.attempts)] : null,
  ];
  const shown = facts.filter((fact) => fact && (!only || only.includes(fact[0])));
  return make("dl", {}, shown.map(([name, value, kind]) =>
    make("div", { class: kind ?? "" }, make("dt", {}, name), make("dd", {}, value))));
}

/** How many tokens there are; those of a hosted model, whose ids nobody knows, as its host counts them. */
function tokenFacts({ row, usage }) {
  if (!row.tokens && empty(usage)) return Object.entries(usage).map(([name, count]) => [name.replaceAll("_", " "), figure(count)]);
  const share = row.tokens ? ` (${Math.round(100 * row.sampled_tokens / row.tokens)} %)` : "";
  return [["tokens", figure(row.tokens)], ["of them sampled", `${figure(row.sampled_tokens)}${share}`]];
}

/** The mean over the sampled tokens of a row that a teacher scored. */
function meanDivergence(sequence) {
  const sampled = [...sequence.divergences.keys()].filter((token) => sequence.mask[token]);
  return sampled.reduce((sum, token) => sum + divergenceOf(sequence, token), 0) / sampled.length;
}

function errorBox({ row, traceback }) {
  return make("div", { class: "error", role: "alert" }, make("p", {}, printable(row.error)),
    traceback ? make("details", {}, make("summary", {}, "Traceback"), make("pre", { tabindex: "0" }, printable(traceback))) : null);
}

/** Where the time went: of the whole as one bar, and of each turn, the environment above sampling. */
function timeChart(rollout) {
  const turns = rollout.turns;
  if (!turns.length) return null;
  const sum = (name) => turns.reduce((whole, turn) => whole + (turn[name] ?? 0), 0);
  const [sampling, env] = [sum("generate_s"), sum("env_s")];
  const total = Math.max(rollout.row.seconds ?? 0, sampling + env, 1e-9);
  const parts = [["sampling", sampling], ["environment", env], ["waiting and all else", total - sampling - env]];
  const most = Math.max(...turns.map((turn) => (turn.generate_s ?? 0) + (turn.env_s ?? 0)), 1e-9);
  return make("figure", { class: "time" },
    make("figcaption", {}, `Time ${seconds(rollout.row.seconds)}:`,
      parts.map(([name, value], k) => make("span", { class: `key k${k}` }, `${name} ${seconds(value)}`))),
    make("div", { class: "whole", "aria-hidden": "true" },
      parts.map(([, value], k) => make("span", { class: `part k${k}`, style: { width: `${100 * value / total}%` } }))),
    make("div", { class: "columns", role: "group", "aria-label": "Time of each turn" },
      turns.map((turn, k) => timeColumn(turn, k, most))));
}

function timeColumn(turn, number, most) {
  const [sampling, env] = [turn.generate_s ?? 0, turn.env_s ?? 0];
  const said = `Turn ${number}: sampling ${seconds(sampling)}, environment ${seconds(env)}`;
  const bar = (value, kind) => value > 0 && make("span", { class: `part ${kind}`, style: { height: `${100 * value / most}%` } });
  return make("button", { type: "button", class: "column", title: said, "aria-label": said, dataset: { turn: number } },
    bar(env, "k1"), bar(sampling, "k0"));
}

/** What else is recorded, folded. */
function otherFacts(rollout) {
  const { row } = rollout;
  const entries = [
    ["dataset row", rollout.columns], ["extras", empty(rollout.extras)],
    ["control tokens that somebody spelled", empty(rollout.control_spellings)],
    ["rewrites by the client", empty(rollout.client_rewrites)],
    ["images that the agent left out of its history", empty(rollout.dropped_images)],
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
