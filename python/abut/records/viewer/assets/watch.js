"use strict";
// The records of a page that `abut view --watch` serves. Rows of the list come as they are written,
// a rollout's tokens when it is opened. These are the only requests of the page, to its own server.

const RETRY_MS = 2000;
const KEPT_ROLLOUTS = 24;
const TYPING_MS = 300;
const REST = 4;

class WatchedRecords extends Records {
  constructor(head) {
    super(head);
    this.epoch = this.batches = 0;
    this.version = -1;
    this.loaded = new Map();
    this.found = new Map();
  }

  /** A rollout with its tokens and all else, each with a table of its own tokens. */
  rollout(row) {
    const { loaded } = this;
    const rollout = loaded.get(row) ?? this.load(row);
    loaded.delete(row);
    loaded.set(row, rollout);
    while (loaded.size > KEPT_ROLLOUTS) loaded.delete(loaded.keys().next().value);
    rollout.catch(() => loaded.delete(row));
    return rollout;
  }

  async load(row) {
    const [pieces, chunk, pictures] = await this.blocks(`rollout?epoch=${this.epoch}&index=${row.index}`);
    const picture = async (hash) => (pictures.facts[hash] ? `data:image/jpeg;base64,${pictures.facts[hash]}` : null);
    return { row, pieces: new Pieces(pieces), picture, ...readChunk(chunk)[0] };
  }

  /** Have the server search what only whole records hold; it looks at each record once. */
  async later(words) {
    const where = words.map(({ word }) => word).join(" ");
    this.searching?.abort();
    const { signal } = this.searching = new AbortController();
    await new Promise((done) => { setTimeout(done, TYPING_MS); });
    const { epoch, rows } = this;
    let found = this.found.get(where);
    if (found?.epoch !== epoch) found = { epoch, seen: 0, indices: new Set() };
    this.found = new Map([[where, found]]); // of one filter: the last
    if (!signal.aborted && found.seen < rows.length) {
      const seen = rows.length;
      const query = new URLSearchParams({ epoch, first: found.seen, last: seen, where });
      const [{ facts }] = await this.blocks(`search?${query}`, { signal }).catch((error) => {
        if (!signal.aborted) throw error;
        return [{ facts: { found: [] } }];
      });
      if (!signal.aborted) {
        for (const index of facts.found) found.indices.add(index);
        found.seen = seen;
      }
    }
    // Each of the words is taken for true where all are.
    for (const word of words) word.test = (row) => found.indices.has(row.index);
  }

  async blocks(path, options = {}) {
    const response = await fetch(path, { cache: "no-store", ...options });
    if (!response.ok) throw new Error(`the server of this page says ${response.status}`);
    const bytes = new Uint8Array(await response.arrayBuffer());
    const blocks = [];
    for (let at = 0; at < bytes.length;) {
      const length = new DataView(bytes.buffer).getUint32(at, true);
      blocks.push(inflate(bytes.subarray(at + 4, at += 4 + length)));
    }
    return Promise.all(blocks);
  }

  /** Wait for what is new, and take it; returns the rows that changed, and whether there is more. */
  async next() {
    const [{ facts }, ...batches] = await this.blocks(`changes?epoch=${this.epoch}&after=${this.batches}&version=${this.version}`);
    const changed = new Set();
    if (facts.epoch !== this.epoch) {
      Object.assign(this, { epoch: facts.epoch, batches: 0, rows: [], byRolloutId: new Map(), loaded: new Map() });
    }
    this.batches += batches.length;
    this.version = facts.version;
    this.sources = facts.sources;
    for (const { facts: batch } of batches) {
      if (batch.rollouts) {
        const first = this.rows.length;
        this.addRows(batch.rollouts);
        for (const row of this.rows.slice(first)) changed.add(row);
      }
      batch.scored?.index.forEach((index, k) => {
        const row = this.rows[index];
        for (const name of Object.keys(batch.scored)) if (name !== "index") row[name] = batch.scored[name][k];
        this.loaded.delete(row);
        changed.add(row);
      });
    }
    if (changed.size || batches.length) this.changed();
    return { changed, ...facts };
  }

  /** The first reading, which may take a while: until then the page says how far it is. */
  async begin() {
    for (;;) {
      const { share, version } = await this.next();
      if (version >= 0 && share === 1) return;
      byId("loading").textContent = `Reading ${Math.floor(100 * share)} %: ${counted(this.rows.length, "rollout")}…`;
    }
  }

  /** Refresh the page as long as its server lives. */
  async follow(app) {
    for (;;) {
      try {
        const { changed, troubles } = await this.next();
        this.say(troubles.map((text) => `Not read: ${text}`).join("\n"));
        const began = performance.now();
        await app.refresh(changed);
        // With 50,000 rollouts a refresh takes a third of a second: leave most of the time to the reader.
        await new Promise((done) => { setTimeout(done, REST * (performance.now() - began)); });
      } catch (error) {
        this.say(`No longer refreshed: ${error.message}. Is “abut view --watch” still running?`);
        await new Promise((done) => { setTimeout(done, RETRY_MS); });
      }
    }
  }

  say(text) {
    const said = byId("watch-said");
    if (said.textContent !== printable(text)) said.textContent = printable(text);
  }
}
