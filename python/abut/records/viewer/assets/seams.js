"use strict";
// Seams: the places where one piece met the next, each a row of its own between the tokens.

const WHY = {
  barrier: "a control token stands there",
  window: "decided by the text around it",
  merged: "the tokenizer would join across it",
  opaque: "encoded again as a whole: no theory for this tokenizer",
};

/** The row of a seam: a line where it is exact, both lists of tokens where it is not. */
function seamRow(rollout, seam, number) {
  const kept = seam.token ?? 0;
  if (seam.exact) {
    const text = kept ? `${seam.kind} · exact, ${counted(kept, "token")} kept` : `${seam.kind} · exact`;
    return make("div", { class: "seam exact", role: "note", title: `Seam ${number}: ${WHY[seam.kind] ?? ""}` },
      make("span", {}, text));
  }
  return make("div", { class: "seam inexact", role: "note", tabindex: "-1", dataset: { seam: number } },
    make("p", {}, make("strong", {}, `≠ Seam ${number}: ${seam.kind}, not exact`), ` ${causeOf(rollout, seam)}`),
    seam.merge ? mergeTable(rollout, seam) : null);
}

function causeOf(rollout, seam) {
  if (seam.merge === null) {
    return `It is inside a character, or the bytes spell a control token: no tokens stand for both sides together. ${stood(rollout, seam)}`;
  }
  if (!seam.merge) {
    const why = rollout.pieces.trouble ? `that takes its tokenizer: ${rollout.pieces.trouble}` : "this tokenizer does not make it again";
    return `${WHY[seam.kind] ?? ""}. Which tokens is not known: ${why}.`;
  }
  const [left, right, merged] = seam.merge;
  const apart = counted(left.length + right.length, "token");
  return `Written in one go, ${quoted(rollout, [...left, ...right])} is ${counted(merged.length, "token")}; `
    + `as it came, in two pieces, it is ${apart}. ${stood(rollout, seam)}`;
}

/** What became of it: sampled tokens are never changed, other text is. */
function stood(rollout, seam) {
  const samples = [seam.token - 1, seam.token].some((token) => rollout.mask[token]);
  return samples ? "The row keeps what was sampled, and what stood before it." : "The row has the joined ones: nothing there was sampled.";
}

function mergeTable(rollout, seam) {
  const [left, right, merged] = seam.merge;
  const list = (numbers, at) => numbers.map((number, k) => {
    const text = rollout.pieces.text(number);
    return make("span", { class: `seam-token${k === at ? " behind" : ""}` },
      make("span", { class: "seam-text" }, text === null ? hexOf(rollout.pieces, number) : withMarks(printable(text)).replaceAll("\n", "")),
      make("span", { class: "seam-id" }, String(rollout.pieces.ids[number])));
  });
  return make("div", { class: "merge" },
    make("div", {}, make("h4", {}, "as it came"), make("div", { class: "seam-tokens" }, list([...left, ...right], left.length))),
    make("div", {}, make("h4", {}, "in one go"), make("div", { class: "seam-tokens" }, list(merged, -1))));
}

const quoted = (rollout, numbers) => `“${withMarks(printable(lossyText(rollout.pieces.join(numbers)))).replaceAll("\n", "")}”`;
