"use strict";
// A rollout as a test for pytest: its tokens are joined anew and its turns are played once more, so
// that it passes or fails as the rollout did. Every text is written as Python's `ascii()` has it:
// nothing that a policy or an environment said is code in it, or turns a line around.

/** A text as a literal of Python. */
function pythonText(text) {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  let literal = "";
  for (const character of text) {
    const code = character.codePointAt(0);
    const named = { "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", [quote]: `\\${quote}` }[character];
    if (named) literal += named;
    else if (code >= 32 && code < 127) literal += character;
    else if (code < 256) literal += `\\x${code.toString(16).padStart(2, "0")}`;
    else if (code < 65536) literal += `\\u${code.toString(16).padStart(4, "0")}`;
    else literal += `\\U${code.toString(16).padStart(8, "0")}`;
  }
  return quote + literal + quote;
}

/** A value of JSON as a literal of Python. */
function pythonValue(value) {
  if (isNone(value)) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "number") return String(value);
  if (typeof value === "string") return pythonText(value);
  if (Array.isArray(value)) return `[${value.map(pythonValue).join(", ")}]`;
  return `{${Object.entries(value).map(([key, one]) => `${pythonText(key)}: ${pythonValue(one)}`).join(", ")}}`;
}

function copiedTest(rollout) {
  const { row } = rollout;
  const name = row.rollout_id.replace(/[^A-Za-z0-9]+/g, "_").toLowerCase();
  const ended = `${row.stop_reason ?? "no stop reason"}, reward ${row.reward ?? "none"}`;
  const withTokens = rollout.tokens && rollout.mask.includes(1) && !rollout.pieces.trouble;
  return [
    `"""A rollout as abut view copied it: it ended by ${ended.replace(/[\\"]/g, "")}."""`,
    "",
    "import inspect",
    ...(withTokens ? ["from pathlib import Path"] : []),
    "",
    "import abut",
    "",
    `ROLLOUT = ${pythonText(row.rollout_id)}`,
    ...(withTokens ? tokenData(rollout) : []),
    ...turnData(rollout),
    ...RECORDED_ENVIRONMENT,
    ...(withTokens ? tokenTest(name) : []),
    ...turnTest(name),
  ].join("\n") + "\n";
}

function tokenData(rollout) {
  const [prompt, ...turns] = [{ first: 0, last: samplesOf(rollout)[0].start }, ...sectionsOf(rollout).filter(({ sample }) => sample)];
  return [
    `TOKENIZER = ${pythonText(rollout.pieces.source)}`,
    `PROMPT = ${pythonParts(rollout, prompt.first, prompt.last)}`,
    "# Of each turn: the ids that were sampled, their text, what closed it, and what followed.",
    "SAMPLES = [",
    ...turns.map(({ sample, last }) => {
      const closed = behindClose(rollout, sample.end);
      const ids = Array.from(rollout.numbers.subarray(sample.start, sample.end), (n) => rollout.pieces.ids[n]);
      const said = lossyText(rollout.pieces.join(rollout.numbers.subarray(sample.start, sample.end)));
      return `    (\n        ${pythonValue(ids)},\n        ${pythonText(said)},\n        ${pythonParts(rollout, sample.end, closed)},\n`
        + `        ${pythonParts(rollout, closed, last)},\n    ),`;
    }),
    "]",
    `IDS = ${pythonValue(Array.from(rollout.numbers, (n) => rollout.pieces.ids[n]))}`,
  ];
}

/** Tokens as the parts that they were written as: what the template wrote apart from content. */
function pythonParts(rollout, first, last) {
  const isScaffold = (token) => ["scaffold", "close"].includes(provenanceNames[rollout.provenance[token]]);
  const parts = [];
  for (let token = first; token < last;) {
    let end = token + 1;
    while (end < last && isScaffold(end) === isScaffold(token)) end++;
    const text = lossyText(rollout.pieces.join(rollout.numbers.subarray(token, end)));
    parts.push(`abut.${isScaffold(token) ? "Scaffold" : "Content"}(${pythonText(text)})`);
    token = end;
  }
  return `[${parts.join(", ")}]`;
}

function behindClose(rollout, token) {
  while (token < rollout.tokens && provenanceNames[rollout.provenance[token]] === "close") token++;
  return token;
}

/** What was said, from the first answer of the policy on: each answer, its reward, and the reply. */
function turnData(rollout) {
  const played = [];
  for (const message of rollout.messages) {
    const content = messageText(rollout, message);
    if (message.role === "assistant") {
      played.push({ action: content, reward: rollout.turns[played.length]?.reward ?? null, reply: [] });
    } else played.at(-1)?.reply.push(`(${pythonValue(message.role)}, ${pythonText(content)})`);
  }
  return [
    `SEED = ${pythonValue(rollout.row.seed ?? "")}`,
    `COLUMNS = ${pythonValue({ ...rollout.columns, episode_seed: rollout.row.episode_seed })}`,
    "# Of each turn: what the policy said, the reward behind it (None: not known), and the reply.",
    "TURNS = [",
    ...played.map(({ action, reward, reply }) =>
      `    (\n        ${pythonText(action)},\n        ${pythonValue(reward)},\n        [${reply.join(", ")}],\n    ),`),
    "]",
    `ERROR = ${pythonValue(rollout.row.error)}`,
  ];
}

const RECORDED_ENVIRONMENT = `

class Recorded:
    """The environment as it was recorded: put yours in its place, and these turns are played on it."""

    def __init__(self):
        self.reward, self.alive, self.turns = None, True, iter(TURNS)

    def reset(self, seed):
        return self, ""

    def step(self, action):
        _, self.reward, reply = next(self.turns)
        return self, [{"role": role, "content": content} for role, content in reply]

    def close(self):
        if ERROR is not None:
            raise abut.errors.EnvError(ERROR)


ENVIRONMENT = Recorded
`.split("\n").slice(0, -1);

const tokenTest = (name) => `

def test_the_tokens_of_${name}():
    file = Path(TOKENIZER, "tokenizer.json")
    load = abut.Tokenizer.from_file if file.is_file() else abut.Tokenizer.from_pretrained
    tokenizer = load(file if file.is_file() else TOKENIZER)
    trajectory = abut.Trajectory(tokenizer)
    seams = [trajectory.append_parts(PROMPT, provenance="prompt")]
    for ids, text, close, reply in SAMPLES:
        assert tokenizer.decode(ids) == text
        trajectory.request()
        seams.append(trajectory.append_sampled(ids, [0.0] * len(ids)))
        if close:
            seams.append(trajectory.append_parts(close, provenance="close"))
        if reply:
            seams.append(trajectory.append_parts(reply))
    assert trajectory.ids.tolist() == IDS
    assert [(number, seam) for number, seam in enumerate(seams) if not seam.exact] == []
`.split("\n").slice(0, -1);

const turnTest = (name) => `

def test_the_turns_of_${name}():
    env = ENVIRONMENT()
    # As abut calls it: with those columns of the row that \`reset\` names.
    names = [*inspect.signature(env.reset).parameters][1:]
    env, _ = env.reset(SEED, **{name: COLUMNS[name] for name in names if name in COLUMNS})
    for action, reward, recorded in TURNS:
        env, reply = env.step(action)
        said = [{"role": "user", "content": reply}] if isinstance(reply, str) else reply
        said = [(message["role"], message["content"]) for message in said if message["content"]]
        assert said == [message for message in recorded if message[1]]
        if reward is not None:
            assert env.reward == reward
    if hasattr(env, "close"):
        env.close()
`.split("\n").slice(0, -1);

/** Show the test of a rollout, and put it into the clipboard. */
async function copyTest(rollout) {
  const test = copiedTest(rollout);
  const text = byId("test-text");
  text.value = test;
  byId("test").showModal();
  text.focus();
  text.select();
  let copied = false;
  try {
    await navigator.clipboard.writeText(test);
    copied = true;
  } catch { // a frame, or a browser that does not trust files: the old way, and else by hand
    copied = document.execCommand("copy");
  }
  byId("test-said").textContent = `${copied ? "Copied." : "Press Ctrl+C to copy it."} `
    + "Put your environment where it says Recorded to play these turns on it.";
}
