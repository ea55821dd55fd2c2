"use strict";
// The data of the page: base64, gzip, JSON and columns behind it. `packed.py` writes it.

const UNKNOWN_SURPRISAL = 65535; // "or more": beyond what sixteen bits hold
const MASK_BIT = 8;

/** The JSON and the bytes of the block with this id. */
const unpack = (id) => inflate(Uint8Array.from(atob(byId(id).textContent), (c) => c.charCodeAt(0)));

async function inflate(packed) {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const raw = new Uint8Array(await new Response(stream).arrayBuffer());
  const length = new DataView(raw.buffer).getUint32(0, true);
  const facts = JSON.parse(new TextDecoder().decode(raw.subarray(4, 4 + length)));
  return { facts, bytes: raw.subarray(4 + length) };
}

class Records {
  /** The list of all rollouts; their tokens are inflated once one is asked for. */
  static async open() {
    const { facts } = await unpack("head");
    if (facts.watched) return new WatchedRecords(facts);
    const pieces = [];
    for (let k = 0; k < facts.tokenizers; k++) pieces.push(new Pieces(await unpack(`pieces-${k}`)));
    return new Records(facts, pieces);
  }

  constructor(head, pieces) {
    this.head = head;
    this.pieces = pieces;
    this.rows = [];
    this.sources = head.sources;
    this.byRolloutId = new Map();
    this.addRows(head.rollouts);
    this.changed();
    this.pictureBlocks = new Map((head.pictures ?? []).flatMap((hashes, k) => hashes.map((hash) => [hash, k])));
    this.pictures = new Map();
    this.chunks = new Map();
  }

  /** Add rows to the list, given as columns; call `changed` after the last of them. */
  addRows(columns) {
    const names = Object.keys(columns);
    const count = columns.rollout_id?.length ?? 0;
    for (let k = 0; k < count; k++) {
      const row = { index: this.rows.length };
      for (const name of names) row[name] = columns[name][k];
      row.tokens = row.prompt_tokens + row.completion_tokens;
      this.rows.push(row);
      this.byRolloutId.set(row.rollout_id, row);
    }
  }

  changed() {
    this.runs = runsOf(this.rows, this.sources);
    this.hasTeacher = this.rows.some((row) => row.teacher);
  }

  /** A rollout with its tokens and all else. */
  async rollout(row) {
    const chunk = await this.chunk(row.chunk);
    const picture = (hash) => this.picture(hash);
    return { row, pieces: this.pieces[row.tokenizer], picture, ...chunk[row.place_in_chunk] };
  }

  /** The thumbnail of an image, as an address; null where the page has none. */
  async picture(hash) {
    const block = this.pictureBlocks.get(hash);
    if (block === undefined) return null;
    if (!this.pictures.has(block)) this.pictures.set(block, unpack(`pictures-${block}`));
    return `data:image/jpeg;base64,${(await this.pictures.get(block)).facts[hash]}`;
  }

  async chunk(number) {
    if (!this.chunks.has(number)) this.chunks.set(number, unpack(`chunk-${number}`).then(readChunk));
    const chunk = this.chunks.get(number);
    // The last used last; a run of a thousand steps need not be in memory at once.
    this.chunks.delete(number);
    this.chunks.set(number, chunk);
    while (this.chunks.size > 24) this.chunks.delete(this.chunks.keys().next().value);
    return chunk;
  }

  /** Make words that look into chunks ready: each chunk is inflated once, for what filters look at. */
  async later() {
    if (this.laterRead) return;
    for (const row of this.rows) {
      const rollout = await this.rollout(row);
      row.later = {
        columns: rollout.columns,
        traceback: rollout.traceback,
        text: rollout.messages.map((message) => messageText(rollout, message)).join("\n"),
      };
    }
    this.laterRead = true;
  }
}

/** The rollouts of a chunk, their columns spread out. */
function readChunk({ facts, bytes }) {
  const sequences = facts.rollouts.flatMap((rollout) => [rollout, ...rollout.branches]);
  let count = 0, sampled = 0;
  for (const sequence of sequences) {
    spreadRuns(sequence);
    count += sequence.tokens;
    sequence.sampled = sequence.mask.reduce((sum, bit) => sum + bit, 0);
    if (sequence.has_logprobs) sampled += sequence.sampled;
  }
  let token = 0, place = 3 * count;
  for (const sequence of sequences) {
    const numbers = new Uint32Array(sequence.tokens);
    for (let k = 0; k < sequence.tokens; k++, token++) {
      numbers[k] = bytes[token] | bytes[token + count] << 8 | bytes[token + 2 * count] << 16;
    }
    sequence.numbers = numbers;
    const surprisals = new Uint16Array(sequence.has_logprobs ? sequence.tokens : 0);
    for (let k = 0; k < surprisals.length; k++) {
      if (!sequence.mask[k]) continue;
      surprisals[k] = bytes[place] | bytes[place + sampled] << 8;
      place++;
    }
    sequence.surprisals = surprisals;
  }
  readDivergences(sequences, bytes.subarray(3 * count + 2 * sampled));
  for (const sequence of sequences) sequence.tools = facts.tools[sequence.tools];
  return facts.rollouts;
}

/** How far each sampled token of the sequences that a teacher scored is from it. */
function readDivergences(sequences, bytes) {
  const half = bytes.length / 2;
  let place = 0;
  for (const sequence of sequences) {
    sequence.divergences = new Int16Array(sequence.has_teacher ? sequence.tokens : 0);
    for (let k = 0; k < sequence.divergences.length; k++) {
      if (!sequence.mask[k]) continue;
      sequence.divergences[k] = bytes[place] | bytes[place + half] << 8;
      place++;
    }
  }
}

/** Who wrote each token, and whether it is trained, from their runs. */
function spreadRuns(sequence) {
  sequence.provenance = new Uint8Array(sequence.tokens);
  sequence.mask = new Uint8Array(sequence.tokens);
  let token = 0;
  for (let k = 0; k < sequence.runs.length; k += 2) {
    const [code, length] = [sequence.runs[k], sequence.runs[k + 1]];
    sequence.provenance.fill(code & (MASK_BIT - 1), token, token + length);
    sequence.mask.fill(code & MASK_BIT ? 1 : 0, token, token + length);
    token += length;
  }
}

/** The surprisal of a token in nats; null where it was not sampled or nobody said. */
function surprisalOf(sequence, token) {
  if (!sequence.mask[token] || !sequence.surprisals.length) return null;
  return sequence.surprisals[token] / 1000;
}

/** The logprob of a token less the teacher's, in nats; null where no teacher scored it. */
function divergenceOf(sequence, token) {
  if (!sequence.mask[token] || !sequence.divergences.length) return null;
  return sequence.divergences[token] / 1000;
}

/** The spans of a sequence that were sampled: those of its turns, or runs of the mask. */
function samplesOf(sequence) {
  if (sequence.turns?.length) return sequence.turns.filter((turn) => turn.end <= sequence.tokens);
  const spans = [];
  for (let token = 0; token < sequence.tokens; token++) {
    if (!sequence.mask[token]) continue;
    const start = token;
    while (token < sequence.tokens && sequence.mask[token]) token++;
    spans.push({ start, end: token });
  }
  return spans;
}
