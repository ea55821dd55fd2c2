"use strict";
// The runs that the rollouts are of. A run is what one recorder wrote; a part of it is one start of
// its process, which `run_id` tells apart. A part that goes on where an earlier one was, resumes it.

/**
 * The runs, and `run` and `part` of each row: keys that stay the same while a run grows.
 *
 * Within one file or folder a part is of the run before it if its first step is above the first step
 * of that run, or if neither has steps; a part that begins anew is a run of its own.
 */
function runsOf(rows, sources) {
  const parts = new Map();
  for (const row of rows) {
    const key = `${row.source} ${row.run_id}`;
    let part = parts.get(key);
    if (!part) parts.set(key, part = { source: row.source, id: row.run_id, rows: [], from: Infinity, ...NO_FACTS() });
    part.rows.push(row);
    part.from = Math.min(part.from, row.time ?? Infinity);
    addFacts(part, row);
  }
  const runs = [];
  const ofSource = new Map();
  for (const part of [...parts.values()].sort((a, b) => (a.from === b.from ? 0 : a.from - b.from))) {
    const before = ofSource.get(part.source) ?? [];
    ofSource.set(part.source, before);
    let run = before.at(-1);
    if (!run || !resumes(part, run)) {
      const name = sources[part.source] ?? "";
      run = { name: before.length ? `${name} (${before.length + 1})` : name, parts: [], ...NO_FACTS() };
      run.key = run.name;
      before.push(run);
      runs.push(run);
    }
    run.parts.push(part);
    part.key = `${run.key}:${part.id ?? ""}`;
    for (const row of part.rows) {
      row.run = run.key;
      row.part = part.key;
      addFacts(run, row);
    }
    delete part.rows;
  }
  return runs.sort((a, b) => b.last - a.last);
}

const NO_FACTS = () => ({ rollouts: 0, low: Infinity, high: -Infinity, last: -Infinity, sum: 0, scored: 0 });

function addFacts(of, row) {
  of.rollouts++;
  if (row.step !== null && row.step < of.low) of.low = row.step;
  if (row.step !== null && row.step > of.high) of.high = row.step;
  if (row.time !== null && row.time > of.last) of.last = row.time;
  if (row.total !== null) {
    of.sum += row.total;
    of.scored++;
  }
}

function resumes(part, run) {
  const [first] = run.parts;
  return part.low === Infinity || first.low === Infinity ? part.low === first.low : part.low > first.low;
}

const stepsOf = ({ low, high }) => (low === Infinity ? "–" : low === high ? String(low) : `${low}–${high}`);

const rewardOf = ({ sum, scored }) => figure(scored ? sum / scored : null, 3);

const whenOf = ({ last }) => (last === -Infinity ? "–" : new Date(1000 * last).toLocaleString("en-GB", {
  month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hour12: false,
}));

class RunPicker {
  /** `pick(key)` is called with the key of a run or of a part of it; null: all. */
  constructor(pick) {
    this.pick = pick;
    this.box = byId("runs");
  }

  show(runs, picked) {
    this.box.hidden = runs.length + (runs[0]?.parts.length ?? 0) < 3;
    if (this.box.hidden) return;
    const one = runs.flatMap((run) => [run, ...run.parts]).find(({ key }) => key === picked);
    byId("runs-said").textContent = one ? printable(this.nameOf(one)) : `All ${counted(runs.length, "run")}`;
    const all = { rollouts: 0, low: Infinity, high: -Infinity, last: -Infinity, sum: 0, scored: 0 };
    for (const run of runs) {
      for (const name of ["rollouts", "sum", "scored"]) all[name] += run[name];
      all.last = Math.max(all.last, run.last);
    }
    const focused = this.box.contains(document.activeElement) && document.activeElement.dataset.run;
    byId("runs-table").tBodies[0].replaceChildren(
      ...(runs.length > 1 ? [this.row({ ...all, key: null }, "All", picked, "")] : []),
      ...runs.flatMap((run) => [
        this.row(run, run.name, picked, run.parts.length > 1 ? "resumed" : ""),
        ...(run.parts.length > 1 ? run.parts.map((part, k) => this.row(part, `part ${k + 1}`, picked, part.id ?? "")) : []),
      ]));
    if (focused !== false) [...this.box.querySelectorAll("[data-run]")].find((name) => name.dataset.run === focused)?.focus();
  }

  nameOf(of) {
    return of.name ?? of.key;
  }

  row(of, name, picked, said) {
    const part = of.parts === undefined && of.key !== null;
    const on = of.key === picked;
    return make("tr", { class: [part && "part-of-run", on && "chosen"].filter(Boolean).join(" "), onclick: () => this.pick(on ? null : of.key) },
      make("td", {}, button([printable(name), said && make("span", { class: "quiet" }, ` ${printable(said)}`)],
        { "aria-pressed": String(on), title: printable(name), dataset: { run: of.key ?? "" } })),
      [whenOf(of), stepsOf(of), figure(of.rollouts), rewardOf(of)].map((text) => make("td", {}, text)));
  }
}
