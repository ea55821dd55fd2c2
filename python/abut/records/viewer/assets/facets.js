"use strict";
// What narrows the list by a click: the rewards as a histogram, and marks, failures and ends with
// counts. Each counts the rollouts that pass all words but its own, so a choice can be changed.

const MOST_BINS = 16;
const FAILURES_SHOWN = 4;

class Facets {
  /** `change(words)` is called with the words of the next filter. */
  constructor(change) {
    this.change = change;
    this.name = "total";
    this.allFailures = false;
    const box = byId("facets");
    box.open = innerWidth > 700 && innerHeight > 600;
    // Drawn only while it is open: its counts take a pass over all rows each.
    box.addEventListener("toggle", () => this.draw());
  }

  /** `fails[i]` has bit k set if row i does not pass word k. */
  show(rows, words, fails) {
    Object.assign(this, { rows, words, fails });
    this.draw();
  }

  draw() {
    if (!this.rows || !byId("facets").open) return;
    const focused = document.activeElement?.dataset?.word;
    byId("histogram").replaceChildren(...this.histogram());
    byId("chips").replaceChildren(...this.marks());
    byId("failures").replaceChildren(...this.failures());
    byId("ends").replaceChildren(...this.ends());
    // The element that had the focus is another one now.
    if (focused) this.chip(focused)?.focus();
  }

  chip(word) {
    return [...byId("facets").querySelectorAll("[data-word]")].find((one) => one.dataset.word === word);
  }

  /** Call `visit(row, passes)` with each row that passes all words but those of the facet. */
  each(own, visit) {
    let mask = 0;
    this.words.forEach((word, k) => { if (own(word)) mask |= bitOf(k); });
    const { rows, fails } = this;
    for (let i = 0; i < rows.length; i++) {
      if ((fails[i] & ~mask) === 0) visit(rows[i], fails[i] === 0);
    }
  }

  /** How many rows have each value of a field. */
  counts(name) {
    const counts = new Map();
    this.each((word) => word.name === name && word.sign === "=", (row) => {
      if (!isNone(row[name])) counts.set(row[name], (counts.get(row[name]) ?? 0) + 1);
    });
    return [...counts].sort((a, b) => b[1] - a[1]);
  }

  /** Put these words in the place of the facet's own; take them off if they are there already. */
  choose(own, words) {
    const rest = this.words.filter((word) => !own(word)).map(({ word }) => word);
    this.change((words.every((word) => this.has(word)) ? rest : [...rest, ...words]).join(" "));
  }

  has(word) {
    return this.words.some((one) => one.word === word);
  }

  button(name, word, count, own, title = word) {
    const on = this.has(word);
    return (count || on) && button([make("span", { class: "chip-name" }, name), make("span", { class: "count" }, figure(count))],
      { class: "chip", title, "aria-pressed": String(on), dataset: { word } }, () => this.choose(own, [word]));
  }

  marks() {
    const marks = [["failed", "error!=none"], ["drift", "inexact_seams>0"], ["branched", "branches>0"]].map(([name, word]) => {
      const own = (one) => one.word === word;
      const { test } = parseWord(word);
      let count = 0;
      this.each(own, (row) => { count += test(row); });
      return this.button(name, word, count, own);
    });
    const modes = this.rows.some((row) => row.mode !== this.rows[0].mode) ? this.values("mode") : [];
    return [...marks, ...modes].filter(Boolean);
  }

  values(name) {
    const own = (word) => word.name === name && word.sign === "=";
    const found = this.counts(name);
    for (const { wanted } of this.words.filter(own)) { // one that is chosen stays, also where nothing has it
      if (!found.some(([one]) => one === wanted)) found.push([wanted, 0]);
    }
    return found.map(([value, count]) => this.button(printable(value), `${name}=${inQuotes(value)}`, count, own, printable(value)));
  }

  failures() {
    const buttons = this.values("failure").filter(Boolean);
    const more = buttons.length - FAILURES_SHOWN;
    if (more <= 0 || this.allFailures) return headed("Failures", buttons);
    const shown = buttons.filter((one, k) => k < FAILURES_SHOWN || one.getAttribute("aria-pressed") === "true");
    return headed("Failures", [...shown, button(`${more} more`, { class: "chip more" }, () => {
      this.allFailures = true;
      this.draw();
    })]);
  }

  ends() {
    return headed("Ends", this.values("stop_reason").filter(Boolean));
  }

  // ---- rewards

  histogram() {
    const names = rewardNames(this.rows);
    const choices = names.length === 1 && names[0] === "env_reward" ? [] : names;
    if (this.name !== "total" && !choices.includes(this.name)) this.name = "total";
    const { name } = this;
    const of = name === "total" ? (row) => row.total : (row) => row.rewards[name];
    const field = name === "total" ? "total" : `rewards.${name}`;
    const own = (word) => word.name === field && word.sign !== "!=";
    const known = [], passing = [];
    let unknown = 0;
    this.each(own, (row, passes) => {
      const value = of(row);
      if (isNone(value)) unknown++;
      else {
        known.push(value);
        passing.push(passes);
      }
    });
    const choice = choices.length > 0 && make("select", { "aria-label": "Which reward", onchange: () => { this.name = choice.value; this.draw(); } },
      ["total", ...choices].map((one) => make("option", { value: one, selected: one === name }, printable(one))));
    const head = make("h2", {}, choice ? "" : "Reward", choice,
      make("span", { class: "quiet" }, known.length ? `mean ${figure(mean(known.filter((_, k) => passing[k])), 3)}` : "none yet"),
      this.button("no reward", `${field}=none`, unknown, own));
    return known.length ? [head, this.bars(field, own, known, passing)] : [head];
  }

  bars(field, own, values, passing) {
    const edges = edgesOf(values);
    const bins = edges.slice(0, -1).map(() => ({ all: 0, passing: 0 }));
    values.forEach((value, i) => {
      const bin = bins[rewardBinOf(edges, value)];
      bin.all++;
      bin.passing += passing[i];
    });
    const most = Math.max(...bins.map(({ all }) => all));
    // A name with a space or a sign cannot be written in a filter.
    const clickable = /^[a-z_]+(?:\.[^\s"<>=!:]+)?$/.test(field);
    const buttons = bins.map((bin, k) => {
      const words = wordsOfBin(field, edges, k);
      const on = words.every((word) => this.has(word));
      const said = `${edges.length === 1 ? figure(edges[0]) : `${figure(edges[k])} to ${figure(edges[k + 1])}`}: ${counted(bin.all, "rollout")}`;
      const bar = (count, kind) => count > 0 && make("span", { class: kind, style: { height: `${100 * count / most}%` } });
      return make("button", {
        type: "button", class: "bin", title: said, "aria-label": said, "aria-pressed": String(on), disabled: !clickable || (!bin.all && !on),
        tabindex: "-1", dataset: { word: words.join(" ") }, onclick: () => this.choose(own, words),
      }, bar(bin.all, "all"), bar(bin.passing, "passing"));
    });
    const reachable = buttons.filter((one) => !one.disabled);
    (reachable.find((one) => one.getAttribute("aria-pressed") === "true") ?? reachable[0])?.setAttribute("tabindex", "0");
    return make("div", {},
      make("div", { class: "bins", role: "group", "aria-label": "Rollouts by reward: arrow keys go from bar to bar", onkeydown: (event) => moveFocus(event, reachable) }, buttons),
      make("p", { class: "ends-of-axis quiet", "aria-hidden": "true" }, make("span", {}, figure(edges[0])), make("span", {}, figure(edges.at(-1)))));
  }
}

const headed = (title, buttons) => (buttons.length ? [make("h2", {}, title), ...buttons] : []);

/** One stop for the Tab key, and arrow keys from one button to the next. */
function moveFocus(event, buttons) {
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const next = by && buttons[buttons.indexOf(event.target) + by];
  if (!by) return;
  event.preventDefault();
  event.stopPropagation();
  if (!next) return;
  for (const one of buttons) one.setAttribute("tabindex", one === next ? "0" : "-1");
  next.focus();
}

/** Round numbers that enclose the values: the edges of at most so many bins. */
function edgesOf(values) {
  const [low, high] = rangeOf(values);
  if (low === high) return [low, low];
  const rough = (high - low) / MOST_BINS;
  const power = 10 ** Math.floor(Math.log10(rough));
  const unit = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * (1 - 1e-9));
  const edge = (k) => Number((k * unit).toPrecision(12));
  let [first, last] = [Math.floor(low / unit + 1e-9), Math.ceil(high / unit - 1e-9)];
  while (edge(first) > low) first--;
  while (edge(last) < high) last++;
  return Array.from({ length: last - first + 1 }, (_, k) => edge(first + k));
}

/** The bin of a value, exactly as its words decide: the last one has its upper edge too. */
function rewardBinOf(edges, value) {
  const last = edges.length - 2;
  let bin = Math.floor((value - edges[0]) / ((edges.at(-1) - edges[0]) / (last + 1) || 1));
  bin = Math.max(0, Math.min(last, bin));
  while (bin > 0 && value < edges[bin]) bin--;
  while (bin < last && value >= edges[bin + 1]) bin++;
  return bin;
}

function wordsOfBin(field, edges, bin) {
  if (edges[0] === edges.at(-1)) return [`${field}=${edges[0]}`];
  return [`${field}>=${edges[bin]}`, `${field}${bin === edges.length - 2 ? "<=" : "<"}${edges[bin + 1]}`];
}
