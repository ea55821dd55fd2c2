"use strict";
// Finding a text in the rollout that is shown, in its tokens or its messages. Matches are ranges over
// the text that stands there: nothing is put into the page, so a match may begin and end inside
// tokens, and the browser's own search works beside it.

const UNITS = ".segment, .said"; // no match goes beyond one of these
const MOST_SHOWN = 20_000; // highlights; all matches are counted, and all can be gone to

class Find {
  constructor(said) {
    this.said = said;
    this.matches = [];
    this.at = null;
    this.body = null;
    this.input = make("input", { type: "search", id: "find", autocomplete: "off", spellcheck: "false", placeholder: "find (f)" });
    this.count = make("span", { class: "quiet find-count", role: "status" });
    this.element = make("form", { class: "find", role: "search", "aria-label": "In this rollout", onsubmit: (event) => event.preventDefault() },
      make("label", { class: "hidden", for: "find" }, "Find in this rollout"), this.input, this.count,
      button("↑", { title: "Previous match (,)", "aria-label": "Previous match" }, () => this.go(-1)),
      button("↓", { title: "Next match (.)", "aria-label": "Next match" }, () => this.go(1)));
    this.input.addEventListener("input", () => this.run());
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.go(event.shiftKey ? -1 : 1);
    });
    // Blocks of tokens get their spans when they come near, and a text may be shown whole.
    this.changes = new MutationObserver(() => {
      this.stale ??= requestAnimationFrame(() => { this.stale = null; this.refresh(); });
    });
  }

  /** Look in the texts of this element from now on. */
  attach(body) {
    if (this.body !== body) this.at = null;
    this.body = body;
    this.changes.disconnect();
    this.changes.observe(body, { childList: true, subtree: true, characterData: true });
    this.run();
  }

  /** Look for a text that the filter of the list has found here, unless somebody looks for another. */
  suggest(text) {
    if (this.input.value && this.input.value !== this.suggested) return;
    this.suggested = text;
    if (this.input.value === text) return;
    this.input.value = text;
    this.run();
  }

  run() {
    this.at = null;
    if (this.body) this.refresh();
  }

  refresh() {
    const query = this.input.value;
    this.units = query ? [...this.body.querySelectorAll(UNITS)] : [];
    if (query) this.showWhole(query);
    this.nodes = new Map();
    // A space in the field is any white space of the text, with its mark too where marks are shown.
    const pattern = query.replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replace(/ /g, "[ \\s·]");
    this.matches = [];
    this.units.forEach((unit, k) => {
      for (const { index, 0: text } of unit.textContent.matchAll(new RegExp(pattern, "giu"))) {
        this.matches.push({ unit: k, start: index, end: index + text.length });
      }
    });
    if (this.at !== null && this.at >= this.matches.length) this.at = null;
    this.draw();
  }

  /** Show all of the texts that are cut and have a match further on. */
  showWhole(query) {
    const wanted = query.toLowerCase();
    const cut = [...this.body.querySelectorAll(".long")].filter((element) => UNSHOWN.get(element)?.text.toLowerCase().includes(wanted));
    for (const element of cut) {
      UNSHOWN.get(element).showAll();
      UNSHOWN.delete(element);
    }
    if (cut.length) this.units = [...this.body.querySelectorAll(UNITS)];
  }

  draw() {
    const count = this.matches.length;
    this.count.textContent = !this.input.value ? "" : !count ? "not found"
      : this.at === null ? figure(count) : `${figure(this.at + 1)} of ${figure(count)}`;
    if (!CSS.highlights) return; // an older browser selects the current match, and shows no others
    const begin = Math.max(0, (this.at ?? 0) - MOST_SHOWN / 2);
    const shown = this.matches.slice(begin, begin + MOST_SHOWN).map((match) => this.range(match, StaticRange));
    CSS.highlights.set("found", new Highlight(...shown));
    const now = this.at === null ? [] : [this.range(this.matches[this.at], StaticRange)];
    CSS.highlights.set("found-now", Object.assign(new Highlight(...now), { priority: 1 }));
  }

  /** Go to the next match from the current one on, or from the top of what is in sight. */
  go(by) {
    if (!this.matches.length) return;
    const count = this.matches.length;
    if (this.at === null) {
      const top = this.body.closest("main").getBoundingClientRect().top;
      const next = this.matches.findIndex(({ unit }) => this.units[unit].getBoundingClientRect().bottom > top);
      this.at = by > 0 ? Math.max(0, next) : (next < 1 ? count : next) - 1;
    } else this.at = (this.at + by + count) % count;
    this.draw();
    this.reveal();
    this.said(`match ${this.at + 1} of ${count}`);
  }

  reveal(frames = 20) {
    const match = this.matches[this.at];
    if (!match) return;
    for (let at = this.units[match.unit]; at !== this.body; at = at.parentElement) {
      if (at.tagName === "DETAILS") at.open = true;
    }
    const range = this.range(match, null);
    const frame = byId("main").getBoundingClientRect();
    const box = range.getBoundingClientRect();
    const bar = this.element.getBoundingClientRect().bottom;
    if (box.top < bar || box.bottom > frame.bottom - 20) byId("main").scrollTop += box.top - (bar + frame.bottom) / 2;
    if (!CSS.highlights) getSelection().setBaseAndExtent(range.startContainer, range.startOffset, range.endContainer, range.endOffset);
    // Again, where blocks on the way turn out to be higher than they were taken for.
    const { at, body } = this;
    if (frames) requestAnimationFrame(() => this.at === at && this.body === body && this.reveal(frames - 1));
  }

  /** The range of a match; a live one without `Kind`. */
  range({ unit, start, end }, Kind) {
    const [from, to] = [this.place(unit, start + 1), this.place(unit, end)];
    const ends = { startContainer: from.node, startOffset: start - from.first, endContainer: to.node, endOffset: end - to.first };
    if (Kind) return new Kind(ends);
    const range = document.createRange();
    range.setStart(ends.startContainer, ends.startOffset);
    range.setEnd(ends.endContainer, ends.endOffset);
    return range;
  }

  /** The text node of a unit that holds the character before this offset, and where it begins. */
  place(unit, offset) {
    if (!this.nodes.has(unit)) {
      const nodes = [];
      const walker = document.createTreeWalker(this.units[unit], NodeFilter.SHOW_TEXT);
      for (let first = 0; walker.nextNode(); first += walker.currentNode.length) {
        if (walker.currentNode.length) nodes.push({ node: walker.currentNode, first });
      }
      this.nodes.set(unit, nodes);
    }
    const nodes = this.nodes.get(unit);
    let [low, high] = [0, nodes.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (nodes[middle].first < offset) low = middle;
      else high = middle - 1;
    }
    return nodes[low];
  }
}
