"use strict";
// The images of a rollout, beside the tokens that stand for them.

const THUMBNAIL = 192; // pixels of the longer side, as the page holds it

/** A thumbnail and what it is of; its size and hash alone where the page does not hold it. */
function pictureOf(rollout, { hash, width, height, start, end }) {
  const size = width ? `${figure(width)} × ${figure(height)}` : null;
  const tokens = start === undefined ? null : `tokens ${start} to ${end - 1}`;
  const element = make("figure", { class: "picture" },
    make("figcaption", {}, ["Image", size, tokens].filter(Boolean).join(" · "), " ", make("code", {}, hash.slice(0, 8))));
  rollout.picture(hash).then((source) => {
    if (source === null) return;
    // Its size first: nothing below moves once the pixels are there.
    const scale = width ? Math.min(1, THUMBNAIL / Math.max(width, height)) : null;
    const sized = scale && { width: Math.max(1, Math.round(scale * width)), height: Math.max(1, Math.round(scale * height)) };
    element.prepend(make("img", { src: source, alt: `Image ${hash.slice(0, 8)}`, ...sized }));
  });
  return element;
}

/** The images in the content of a message, of which records have the hashes. */
function picturesOf(rollout, message) {
  const blocks = Array.isArray(message.blocks) ? message.blocks : [];
  return blocks.filter((b) => b?.type === "image" && typeof b.image === "string").map((b) => pictureOf(rollout, { hash: b.image }));
}
