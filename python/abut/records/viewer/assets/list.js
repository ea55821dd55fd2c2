"use strict";
// The list of rollouts on the left: filtered, sorted, by group. Only the rows that are in sight
// exist, so a run of a hundred thousand rollouts scrolls as one of ten.

const ROW_HEIGHT = 28;
const COLUMNS = [
  { key: "step", title: "rollout", label: "step, group and place" },
  { key: "total", title: "reward", label: "reward" },
  { key: "advantage", title: "adv.", label: "advantage" },
  { key: "turns", title: "turns", label: "turns" },
  { key: "tokens", title: "tokens", label: "tokens" },
  { key: "inexact_seams", title: "drift", label: "inexact seams" },
  { key: "seconds", title: "time", label: "seconds" },
  { key: "stop_reason", title: "end", label: "stop reason and error" },
];

class RolloutList {
  /** `open(row)` is called with the rollout that is chosen. */
  constructor(element, open) {
    this.element = element;
    this.open = open;
    this.sort = { key: "step", down: true };
    this.byGroup = true;
    this.opened = new Set();
    this.items = []; // groups that are closed or open, and rollouts, as they stand
    this.rows = [];
    this.active = 0;
    this.chosen = null;
    this.head = make("div", { role: "row", class: "row head" }, COLUMNS.map((column) => this.title(column)));
    this.body = make("div", { role: "rowgroup", class: "rows" });
    element.append(make("div", { role: "rowgroup", class: "row-head" }, this.head), this.body);
    element.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(element);
    element.addEventListener("keydown", (event) => this.key(event));
    // By its place: a row may be drawn anew between the press of the button and its release.
    this.body.addEventListener("click", (event) => {
      const index = Math.floor((event.clientY - this.body.getBoundingClientRect().top) / ROW_HEIGHT);
      if (index < this.items.length) this.choose(index);
    });
  }

  title({ key, title, label }) {
    return make("div", { role: "columnheader", class: `cell c-${key}`, dataset: { key } },
      button(title, { title: `Sort by ${label}`, tabindex: "-1" }, () => this.sortBy(key)));
  }

  sortBy(key) {
    this.sort = { key, down: this.sort.key === key ? !this.sort.down : key !== "stop_reason" };
    this.show(this.rows);
    this.element.scrollTop = 0;
  }

  /** Show these rollouts, which passed the filter. */
  show(rows) {
    this.rows = rows;
    const values = rows.map((row) => row.total).filter((value) => value !== null);
    // Not Math.min(...values): a call takes no hundred thousand arguments.
    this.lowest = values.reduce((least, value) => Math.min(least, value), 0);
    this.highest = values.reduce((most, value) => Math.max(most, value), this.lowest + 1e-9);
    const sign = this.sort.down ? -1 : 1;
    const compare = (a, b) => compareBy(this.sort.key, sign, a, b);
    this.groups = this.byGroup ? groupsOf(rows) : rows.map((row) => ({ key: null, rows: [row] }));
    for (const group of this.groups) {
      group.rows.sort((a, b) => (this.sort.key === "step" ? a.place - b.place : compare(a, b)));
      group.summary = group.rows.length > 1 ? summary(group.rows) : group.rows[0];
    }
    this.groups.sort((a, b) => compare(a.summary, b.summary));
    for (const cell of this.head.children) {
      const sorted = cell.dataset.key === this.sort.key;
      cell.setAttribute("aria-sort", !sorted ? "none" : this.sort.down ? "descending" : "ascending");
    }
    this.layOut();
  }

  layOut() {
    this.items = [];
    for (const group of this.groups) {
      const alone = group.rows.length === 1;
      if (!alone) this.items.push({ group });
      if (alone || this.opened.has(group.key)) {
        for (const row of group.rows) this.items.push({ row, group, alone });
      }
    }
    this.element.setAttribute("aria-rowcount", this.items.length + 1);
    this.body.style.height = `${this.items.length * ROW_HEIGHT}px`;
    this.active = Math.min(this.active, Math.max(0, this.items.length - 1));
    this.draw();
  }

  draw() {
    const { scrollTop, clientHeight } = this.element;
    const first = Math.max(0, Math.floor(scrollTop / ROW_HEIGHT) - 4);
    const last = Math.min(this.items.length, first + Math.ceil(clientHeight / ROW_HEIGHT) + 8);
    const drawn = [];
    for (let k = first; k < last; k++) drawn.push(this.row(k));
    this.body.replaceChildren(...drawn);
    const active = this.items.length ? `row-${this.active}` : null;
    if (active) this.element.setAttribute("aria-activedescendant", active);
    else this.element.removeAttribute("aria-activedescendant");
  }

  row(index) {
    const { row, group, alone } = this.items[index];
    const of = row ?? group.summary;
    const opened = !row && this.opened.has(group.key);
    const chosen = row ? row === this.chosen : !opened && group.rows.includes(this.chosen);
    const name = row ? rowName(row, alone) : `${opened ? "▾" : "▸"} ${groupName(group.rows)}`;
    const cells = [
      name,
      make("span", { class: "bar-of" }, this.bar(of.total), briefly(of.total)),
      briefly(of.advantage, 2), briefly(of.turns, 1), briefly(of.tokens, 0),
      of.seams === 0 ? "–" : of.inexact_seams ? `≠ ${briefly(of.inexact_seams)}` : "0",
      seconds(of.seconds), row ? endOf(row) : of.stop_reason ?? "–",
    ];
    const flags = [row ? "rollout" : "group", chosen && "chosen", index === this.active && "active",
      of.error && "failed", of.inexact_seams && "drift"];
    return make("div", {
      role: "row", id: `row-${index}`, class: `row ${flags.filter(Boolean).join(" ")}`,
      "aria-rowindex": index + 2, "aria-level": row && !alone ? 2 : 1,
      "aria-expanded": row ? null : String(opened), "aria-selected": String(chosen),
      title: row ? row.rollout_id : `${group.rows.length} rollouts`,
      style: { top: `${index * ROW_HEIGHT}px` },
    }, cells.map((cell, k) => make("div", { role: "gridcell", class: `cell c-${COLUMNS[k].key}` }, cell)));
  }

  bar(reward) {
    if (reward === null) return null;
    const share = (reward - this.lowest) / (this.highest - this.lowest);
    return make("span", { class: "bar", style: { width: `${Math.round(100 * share)}%` } });
  }

  choose(index) {
    this.active = index;
    const { row, group } = this.items[index];
    if (row) this.open(row);
    else this.toggle(group);
  }

  toggle(group) {
    if (!this.opened.delete(group.key)) this.opened.add(group.key);
    this.layOut();
  }

  /** Show other rows such that what is in sight stays in sight; at the top, what is new comes in. */
  refresh(rows) {
    const top = this.element.scrollTop;
    const [seen, active] = [this.items[Math.floor(top / ROW_HEIGHT)], this.items[this.active]];
    this.show(rows);
    this.active = Math.max(0, this.indexOf(active));
    const at = top ? this.indexOf(seen) : -1;
    if (at >= 0) this.element.scrollTop = at * ROW_HEIGHT + top % ROW_HEIGHT;
    this.draw();
  }

  /** Where an item of another list stands in this one. */
  indexOf(item) {
    return this.items.findIndex(({ row, group }) => (row ? row.rollout_id === item?.row?.rollout_id
      : item && !item.row && group.key === item.group.key));
  }

  /** Mark a rollout as the one that is shown, its group opened, and bring it into sight. */
  mark(row) {
    this.chosen = row;
    const group = this.groups?.find(({ rows }) => rows.includes(row));
    if (group && group.rows.length > 1 && !this.opened.has(group.key)) {
      this.opened.add(group.key);
      this.layOut();
    }
    const index = this.items.findIndex((item) => item.row === row);
    if (index >= 0) this.active = index;
    this.reveal();
  }

  reveal() {
    const top = this.active * ROW_HEIGHT;
    const height = this.element.clientHeight - ROW_HEIGHT;
    const at = this.element.scrollTop;
    if (top < at) this.element.scrollTop = Math.max(0, top - height / 3);
    else if (top + ROW_HEIGHT > at + height) this.element.scrollTop = top - height / 3;
    this.draw();
  }

  /** The rollout that stands `by` further down than the one that is shown. */
  neighbour(by) {
    const rows = this.groups.flatMap((group) => group.rows);
    const at = rows.indexOf(this.chosen);
    return at < 0 ? rows[0] : rows[at + by];
  }

  key(event) {
    const item = this.items[this.active];
    const move = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9 }[event.key];
    if (move) this.active = Math.max(0, Math.min(this.items.length - 1, this.active + move));
    else if (!item || event.target !== this.element) return;
    else if (event.key === "Enter" || event.key === " ") this.choose(this.active);
    else if (event.key === "ArrowRight" && !item.row && !this.opened.has(item.group.key)) this.toggle(item.group);
    else if (event.key === "ArrowLeft" && this.opened.has(item.group.key)) {
      this.active = this.items.findIndex((other) => !other.row && other.group === item.group);
      this.toggle(item.group);
    } else if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
    event.preventDefault();
    event.stopPropagation();
    this.reveal();
  }
}

/** With so many decimals at most, as columns of figures are read. */
const briefly = (value, decimals = 3) => (isNone(value) ? "–"
  : value < 100_000 ? value.toLocaleString("en", { maximumFractionDigits: decimals })
    : value.toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 }));

const groupKey = (row) => (row.group === null ? `one ${row.index}`
  : `${row.part} ${row.mode} ${row.step} ${row.group}`);

function groupsOf(rows) {
  const groups = new Map();
  for (const row of rows) {
    const key = groupKey(row);
    if (!groups.has(key)) groups.set(key, { key, rows: [] });
    groups.get(key).rows.push(row);
  }
  return [...groups.values()];
}

/** A group as a row: means, and what they have in common. */
function summary(rows) {
  const over = (name) => mean(rows.map((row) => row[name]));
  const failed = rows.filter((row) => row.error !== null).length;
  const ends = new Set(rows.map((row) => row.stop_reason));
  return {
    index: rows[0].index, step: rows[0].step, group: rows[0].group, mode: rows[0].mode,
    total: over("total"), advantage: null, turns: over("turns"), tokens: over("tokens"),
    seconds: over("seconds"), seams: over("seams"), error: failed ? `${failed} failed` : null,
    inexact_seams: rows.reduce((sum, row) => sum + row.inexact_seams, 0),
    stop_reason: failed ? `${failed} failed` : ends.size === 1 ? [...ends][0] : `${ends.size} kinds`,
  };
}

/** `sign` is -1 where the largest is first. Unknown values stand last either way. */
function compareBy(key, sign, a, b) {
  const [x, y] = [a[key], b[key]];
  if (x === y || (isNone(x) && isNone(y))) return sign * ((a.group ?? 0) - (b.group ?? 0)) || a.index - b.index;
  if (isNone(x)) return 1;
  if (isNone(y)) return -1;
  return x < y ? -sign : sign;
}

const endOf = (row) => (row.error ? `error: ${printable(row.error.split("\n")[0])}` : row.stop_reason ?? "–");

function rowName(row, alone) {
  if (row.group === null) return row.rollout_id;
  return alone ? `${stepName(row)} · ${row.group}.${row.place ?? 0}` : `${row.group}.${row.place ?? 0}`;
}

const stepName = (row) => (row.step === null ? "–" : `${row.mode === "eval" ? "eval " : ""}${row.step}`);

const groupName = (rows) => `${stepName(rows[0])} · ${rows[0].group} ×${rows.length}`;
