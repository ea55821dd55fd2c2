"use strict";
// The filter of `abut show`, word for word: `abut/records/filter.py` is the definition, and the table
// `tests/records/filter_cases.json` tests both.

const NUMBERS = new Set([
  "reward", "total", "advantage", "step", "group", "place", "rank", "attempts", "seconds", "episode_seed",
  "time", "turns", "tokens", "completion_tokens", "sampled_tokens", "seams", "inexact_seams",
  "branches",
]);
const TEXTS = new Set([
  "error", "failure", "mode", "stop_reason", "rollout_id", "run_id", "seed", "traceback", "text",
]);
const IN_CHUNKS = new Set(["traceback", "text"]); // and columns
const WORDS = /[^\s"]*[<>=!:]"(?:[^"]|"")*"(?!\S)|\S+/g;
const FILTER_WORD = /^([a-z_]+(?:\.[^<>=!:]+)?)(<=|>=|!=|<|>|=|:)([^]*)$/;
const PLAIN_NUMBER =
  /^[+-]?(?:(?:\d+(?:_\d+)*\.?(?:\d+(?:_\d+)*)?|\.\d+(?:_\d+)*)(?:e[+-]?\d+(?:_\d+)*)?|inf|infinity|nan)$/i;

const COMPARE = {
  "<": (a, b) => a < b, ">": (a, b) => a > b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b,
  "=": (a, b) => a === b, "!=": (a, b) => a !== b, ":": (a, b) => a === b,
};

const wordsOf = (text) => text.match(WORDS) ?? [];

/** A value as a filter has it, in quotes if it would be taken for something else. */
const inQuotes = (value) => (/\s|^"|^none$|^$/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);

/** The words of a filter, each with its `test` of a row, and `inChunks` if only chunks hold what it takes. */
const parseFilter = (text) => wordsOf(text).map(parseWord);

const passes = (words) => (row) => words.every(({ test }) => test(row));

/** For each row a bit for each word that it does not pass. */
function failsOf(rows, words) {
  const fails = new Int32Array(rows.length);
  words.forEach(({ test }, k) => {
    const bit = bitOf(k);
    rows.forEach((row, i) => { if (!test(row)) fails[i] |= bit; });
  });
  return fails;
}

/** A number has no more than 31 bits: words beyond them share the last one. */
const bitOf = (k) => 1 << Math.min(k, 30);

function parseWord(word) {
  const match = FILTER_WORD.exec(word);
  if (!match) throw new Error(`“${word}” is not a condition on a record: write NAME, one of : = != < <= > >=, and a value`);
  const [, name, sign, value] = match;
  const { of, isNumber, inChunks } = getter(name, word);
  const isQuoted = value.length > 1 && value.startsWith('"') && value.endsWith('"');
  const wanted = isQuoted ? value.slice(1, -1).replaceAll('""', '"') : value;
  // A quoted value of a column is a text.
  const test = testOf(word, of, isQuoted ? isNumber ?? false : isNumber, wanted, isQuoted);
  return { word, name, sign, wanted, inChunks, test };
}

function testOf(word, of, isNumber, wanted, isQuoted) {
  const [, name, sign] = FILTER_WORD.exec(word);
  if (wanted === "none" && !isQuoted) {
    if (!["=", ":", "!="].includes(sign)) throw new Error(`“${word}”: none cannot be compared by size`);
    return (row) => isNone(of(row)) === (sign !== "!=");
  }
  isNumber ??= parseNumber(wanted) !== null;
  if (!isNumber) return textTest(of, sign, wanted, word);
  const number = parseNumber(wanted);
  if (number === null) throw new Error(`“${word}”: ${name} is a number, but “${wanted}” is not`);
  const compare = COMPARE[sign];
  return (row) => {
    let known = of(row);
    if (typeof known === "boolean") known = Number(known);
    return typeof known === "number" ? compare(known, number) : sign === "!=";
  };
}

function textTest(of, sign, wanted, word) {
  if (sign === ":") {
    const folded = casefold(wanted);
    return (row) => casefold(asText(of(row))).includes(folded);
  }
  if (sign !== "=" && sign !== "!=") throw new Error(`“${word}”: text cannot be compared by size; use : = or !=`);
  return (row) => (asText(of(row)) === wanted) === (sign === "=");
}

function getter(name, word) {
  if (NUMBERS.has(name)) return { of: (row) => row[name], isNumber: true, inChunks: false };
  if (TEXTS.has(name)) {
    const inChunks = IN_CHUNKS.has(name);
    const of = inChunks ? (row) => row.later?.[name] : (row) => row[name];
    return { of, isNumber: false, inChunks };
  }
  const dot = name.indexOf(".");
  const [field, key] = dot < 0 ? [name, ""] : [name.slice(0, dot), name.slice(dot + 1)];
  const own = (object) => (object && Object.hasOwn(object, key) ? object[key] : null);
  if (field === "rewards" && key) {
    return { of: (row) => own(row.rewards), isNumber: true, inChunks: false };
  }
  if (field === "columns" && key) {
    return { of: (row) => own(row.later?.columns), isNumber: null, inChunks: true };
  }
  throw new Error(`“${word}”: records do not have “${name}”. Names are ${[...NUMBERS, ...TEXTS].join(", ")}, rewards.FUNCTION and columns.COLUMN`);
}

function parseNumber(text) {
  if (!PLAIN_NUMBER.test(text)) return null;
  const plain = text.replaceAll("_", "").toLowerCase();
  if (plain.includes("inf")) return plain.startsWith("-") ? -Infinity : Infinity;
  return Number(plain); // "nan" too
}

const isNone = (value) => value === null || value === undefined;

/** As Python's str(). */
function asText(value) {
  if (isNone(value)) return "";
  if (typeof value === "boolean") return value ? "True" : "False";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

// As Python's casefold(): by way of capitals, "ß" is "ss", and both small sigmas are one.
const casefold = (text) => text.toUpperCase().toLowerCase().replaceAll("ς", "σ");
