"use strict";
// What makes elements. Text reaches the page as text alone: nothing here, or anywhere else in these
// files, parses markup.

const byId = (id) => document.getElementById(id);

/** An element. `class`, `on…` and `dataset` are what they say, other names are attributes. */
function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function makeSvg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "dataset") Object.assign(element.dataset, value);
    else if (name === "style") setStyle(element, value);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

// The page's policy stops style attributes, and not what scripts set one by one.
function setStyle(element, styles) {
  for (const [name, value] of Object.entries(styles)) element.style.setProperty(name, value);
}

function button(text, attributes, onclick) {
  return make("button", { type: "button", ...attributes, onclick }, text);
}

/** A number as people read it: at most so many figures, "–" where there is none. */
function figure(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const rounded = Number(value.toPrecision(digits));
  return Math.abs(rounded) >= 1e-4 ? rounded.toLocaleString("en", { maximumFractionDigits: 6 })
    : String(rounded);
}

/** A difference: positive ones with their sign. */
const signed = (value) => `${value > 0 ? "+" : ""}${figure(value, 3)}`;

function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 100) return `${Math.round(value).toLocaleString("en")} s`;
  if (value >= 0.1) return `${figure(value, value < 1 ? 2 : 3)} s`;
  if (value >= 0.001) return `${figure(value * 1000, 2)} ms`;
  return value >= 5e-7 ? `${figure(value * 1e6, 2)} µs` : "0 s";
}

const counted = (count, one, many = `${one}s`) => `${figure(count)} ${count === 1 ? one : many}`;

const mean = (values) => {
  const known = values.filter((value) => value !== null && value !== undefined);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
};
