"use strict";
// What training did, step by step. Each point leads to the rollouts that it is the mean of.

const CURVES = [
  { title: "Reward", of: (rows) => mean(rows.map((row) => row.total)), band: (row) => row.total },
  { title: "Turns", of: (rows) => mean(rows.map((row) => row.turns)), band: (row) => row.turns },
  { title: "Tokens", of: (rows) => mean(rows.map((row) => row.tokens)), band: (row) => row.tokens },
  { title: "Failed rollouts", percent: true, of: (rows) => 100 * mean(rows.map((row) => (row.error === null ? 0 : 1))) },
  { title: "Exact seams", percent: true, of: exactShare },
];

/** A curve for each reward function, where the total is not all there is to see. */
function curvesOf(rows) {
  const names = rewardNames(rows);
  if (names.length === 1 && names[0] === "env_reward") return CURVES;
  const of = (name) => (row) => row.rewards[name] ?? null;
  const rewards = names.map((name) => ({ title: name, of: (rows) => mean(rows.map(of(name))), band: of(name) }));
  return [CURVES[0], ...rewards, ...CURVES.slice(1)];
}

function rewardNames(rows) {
  const names = new Set();
  for (const row of rows) for (const name of Object.keys(row.rewards)) names.add(name);
  return [...names];
}

const CHART = { width: 350, height: 160, left: 44, right: 8, top: 12, bottom: 24 };

function exactShare(rows) {
  const seams = rows.reduce((sum, row) => sum + row.seams, 0);
  return seams ? 100 - 100 * rows.reduce((sum, row) => sum + row.inexact_seams, 0) / seams : null;
}

class CurvesView {
  constructor(element, open) {
    this.element = element;
    this.open = open;
  }

  show(rows) {
    const modes = [...new Set(rows.map((row) => row.mode))];
    const series = modes.map((mode, k) => ({ mode, dashed: k > 0, points: pointsOf(rows.filter((row) => row.mode === mode)) }));
    const steps = [...new Set(series.flatMap(({ points }) => points.map(({ step }) => step)))].sort((a, b) => a - b);
    if (!steps.length) {
      this.element.replaceChildren(make("p", { class: "note" }, "None of these rollouts belongs to a step."));
      return;
    }
    const choice = make("select", { id: "step-choice" }, steps.map((step) => make("option", { value: step }, String(step))));
    choice.value = steps.at(-1);
    this.element.replaceChildren(
      make("header", { class: "rollout-head" }, make("div", { class: "title" }, make("h2", {}, "Over the steps"),
        make("span", { class: "quiet" }, `${counted(rows.length, "rollout")}, ${counted(steps.length, "step")}`),
        make("span", { class: "actions" }, make("label", { for: "step-choice" }, "Step "), choice,
          button("Show its rollouts", {}, () => this.open(Number(choice.value), modes[0])))),
        make("p", { class: "quiet" }, "Lines are means of a step, bands reach from its lowest to its highest. A click leads to the rollouts."),
        modes.length > 1 ? make("p", { class: "quiet" }, series.map(({ mode, dashed }) => `${mode ?? "no mode"}: ${dashed ? "dashed" : "solid"}`).join(" · ")) : null),
      make("div", { class: "charts" }, curvesOf(rows).map((curve) => this.chart(curve, series, steps))));
  }

  chart(curve, series, steps) {
    const lines = series.map((one) => ({
      ...one,
      values: one.points.map(({ step, rows }) => ({ step, value: curve.of(rows), range: curve.band && rangeOf(rows.map(curve.band)) })),
    }));
    const known = lines.flatMap(({ values }) => values.flatMap(({ value, range }) => [value, ...(range ?? [])])).filter((v) => v !== null);
    const { low, high, ticks } = scaleOf(known, curve.percent);
    const { width, height, left, right, top, bottom } = CHART;
    const [from, to] = [steps[0], steps.at(-1)];
    const x = (step) => left + (to === from ? 0.5 : (step - from) / (to - from)) * (width - left - right);
    const y = (value) => height - bottom - (value - low) / (high - low) * (height - top - bottom);
    const tip = make("p", { class: "tip", "aria-hidden": "true" });
    const cursor = makeSvg("line", { class: "cursor", y1: top, y2: height - bottom, visibility: "hidden" });
    const svg = makeSvg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spoken(curve, lines) },
      ticks.map((tick) => makeSvg("g", {}, makeSvg("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }),
        makeSvg("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, figure(tick, 3) + (curve.percent ? " %" : "")))),
      [from, to].map((step, k) => makeSvg("text", { x: x(step), y: height - 8, "text-anchor": to === from ? "middle" : k ? "end" : "start" }, `step ${step}`)),
      lines.map((line, k) => drawn(line, k, x, y)), cursor);
    const at = (event) => {
      const box = svg.getBoundingClientRect();
      const step = from + (((event.clientX - box.left) / box.width) * width - left) / (width - left - right) * (to - from);
      return steps.reduce((best, one) => (Math.abs(one - step) < Math.abs(best - step) ? one : best), steps[0]);
    };
    svg.addEventListener("mousemove", (event) => {
      const step = at(event);
      fill(cursor, { x1: x(step), x2: x(step), visibility: "visible" }, []);
      tip.textContent = `step ${step}: ` + lines.map(({ mode, values }) => {
        const point = values.find((value) => value.step === step);
        return point ? `${lines.length > 1 ? `${mode} ` : ""}${figure(point.value, 3)}${curve.percent ? " %" : ""}` : "–";
      }).join(", ");
    });
    svg.addEventListener("mouseleave", () => { cursor.setAttribute("visibility", "hidden"); tip.textContent = ""; });
    svg.addEventListener("click", (event) => {
      const step = at(event);
      this.open(step, lines.find(({ points }) => points.some((point) => point.step === step)).mode);
    });
    return make("figure", { class: "chart" }, make("figcaption", {}, make("h3", {}, curve.title), tip), svg);
  }
}

function pointsOf(rows) {
  const steps = new Map();
  for (const row of rows) {
    if (row.step === null) continue;
    if (!steps.has(row.step)) steps.set(row.step, []);
    steps.get(row.step).push(row);
  }
  return [...steps].map(([step, of]) => ({ step, rows: of })).sort((a, b) => a.step - b.step);
}

function rangeOf(values) {
  const known = values.filter((value) => value !== null);
  return known.length ? [known.reduce((a, b) => Math.min(a, b)), known.reduce((a, b) => Math.max(a, b))] : null;
}

/** Round values that enclose what there is. */
function scaleOf(values, percent) {
  let [low, high] = rangeOf(values) ?? [0, 1];
  if (percent && low < 80) return { low: 0, high: 100, ticks: [0, 50, 100] };
  if (percent) return low < 95 ? { low: 80, high: 100, ticks: [80, 90, 100] } : { low: 95, high: 100, ticks: [95, 100] };
  if (low > 0 && low < 0.6 * high) low = 0;
  if (high === low) [low, high] = [low - 0.5, high + 0.5];
  const rough = (high - low) / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const unit = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough);
  low = Math.floor(low / unit + 1e-9) * unit;
  high = Math.ceil(high / unit - 1e-9) * unit;
  const ticks = [];
  for (let k = 0; low + k * unit <= high + unit / 1e6; k++) ticks.push(low + k * unit);
  return { low, high, ticks };
}

/** A line, its band, and a dot for each step where there are few. */
function drawn({ values, dashed }, k, x, y) {
  const known = values.filter(({ value }) => value !== null);
  const path = known.map(({ step, value }, i) => `${i ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const banded = known.filter(({ range }) => range);
  const edge = (of, side) => of.map(({ step, range }) => `${x(step).toFixed(1)} ${y(range[side]).toFixed(1)}`).join("L");
  const band = banded.length > 1 && `M${edge(banded, 1)}L${edge([...banded].reverse(), 0)}Z`;
  return makeSvg("g", { class: `curve q${k % 2}` },
    band ? makeSvg("path", { class: "band", d: band }) : null,
    makeSvg("path", { class: dashed ? "line dashed" : "line", d: path }),
    known.length <= 30 ? known.map(({ step, value }) => makeSvg("circle", { cx: x(step), cy: y(value), r: 3 })) : null);
}

function spoken({ title, percent }, lines) {
  return `${title}: ` + lines.map(({ mode, values }) => {
    const known = values.filter(({ value }) => value !== null);
    if (!known.length) return "unknown";
    const say = ({ step, value }) => `${figure(value, 3)}${percent ? " percent" : ""} at step ${step}`;
    return `${lines.length > 1 ? `${mode}: ` : ""}${say(known[0])}, ${say(known.at(-1))}`;
  }).join("; ");
}
