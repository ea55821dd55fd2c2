"use strict";
// The page as a whole: what is shown, the address that says so, the keys, and what goes with a token.

class App {
  constructor(records) {
    this.records = records;
    this.state = { row: null, branch: 0, token: null, mode: 1, view: "tokens", other: null, where: "", run: null };
    this.options = { spaces: false, ids: false };
    this.reads = "tokens"; // or "chat": what somebody chose last
    this.narrow = matchMedia("(max-width: 700px)");
    this.narrow.addEventListener("change", () => this.setScreen(document.body.dataset.screen));
    this.shownRows = records.rows;
    provenanceNames = records.head.provenance;
    this.list = new RolloutList(byId("list"), (row) => this.openRollout(row));
    this.rollout = new RolloutView(byId("view-tokens"), this.hooks());
    this.compare = new CompareView(byId("view-compare"), this.hooks());
    this.curves = new CurvesView(byId("view-curves"), (step, mode) => this.openStep(step, mode));
    this.facets = new Facets((words) => this.filter(words));
    this.runs = new RunPicker((key) => this.pickRun(key));
    this.describe();
    this.listen();
  }

  hooks() {
    return {
      toolbar: () => this.toolbar(),
      watch: (element, textOf) => this.watch(element, textOf),
      point: (token) => this.point(token),
      said: (text) => { byId("said").textContent = text; },
      branch: (branch) => this.go({ branch, token: null }),
      toChat: () => button("Read its messages", {}, () => this.go({ view: "chat" })),
      actions: (rollout) => [
        button("Compare", { title: "Beside another rollout of its group (c)" }, () => this.go({ view: "compare" })),
        button("Copy as test", { title: "A pytest case with these turns" }, () => copyTest(rollout)),
      ],
      partners: (left, right) => this.partners(left, right),
    };
  }

  /** The rollouts of the run that is picked. */
  get rows() {
    const { rows } = this.records;
    const { run } = this.state;
    return run === null ? rows : rows.filter((row) => row.run === run || row.part === run);
  }

  describe() {
    const { head } = this.records;
    const { rows } = this;
    this.runs.show(this.records.runs, this.state.run);
    byId("page-name").textContent = head.name;
    const steps = new Set(rows.map((row) => row.step).filter((step) => step !== null)).size;
    const facts = [counted(rows.length, "rollout"), steps ? counted(steps, "step") : null,
      head.where ? `where ${head.where}` : null, head.without.length ? `without ${head.without.join(", ")}` : null];
    byId("page-facts").textContent = facts.filter(Boolean).join(" · ");
  }

  // ---- what is shown

  /** Change what is shown, and the address with it. */
  async go(changes) {
    const { view } = this.state;
    // From tokens to chat and back, the same turn stays at the top.
    const isSwitch = Object.keys(changes).join() === "view";
    const place = isSwitch && isOneRollout(view) && this.state.row ? this.rollout.place() : undefined;
    if (isSwitch && isOneRollout(changes.view)) this.reads = changes.view;
    Object.assign(this.state, changes);
    this.writeAddress();
    await this.render(place);
  }

  openRollout(row, changes = {}) {
    const view = this.state.view === "compare" ? "compare" : this.viewOf(row);
    return this.go({ row, branch: 0, token: null, other: null, view, ...changes });
  }

  /** As what a rollout is opened: as the one before it, and as a chat where it has no tokens. */
  viewOf(row) {
    return row && !row.tokens ? "chat" : this.reads;
  }

  async render(place, { still = false } = {}) {
    const { state } = this;
    if (!still) this.setScreen("main");
    for (const tab of document.querySelectorAll("[data-view]")) {
      tab.setAttribute("aria-pressed", String(state.view === tab.dataset.view));
    }
    byId("view-tokens").hidden = !isOneRollout(state.view);
    for (const view of ["compare", "curves"]) byId(`view-${view}`).hidden = state.view !== view;
    this.hideCard();
    byId("loading").hidden = Boolean(state.row) || state.view === "curves";
    if (!state.row) byId("loading").textContent = "There are no rollouts.";
    if (!still) this.list.mark(state.row);
    if (state.view === "curves") return this.curves.show(this.shownRows);
    if (!state.row) return null;
    const ticket = this.ticket = {};
    let rollout, other;
    try {
      rollout = await this.records.rollout(state.row);
      other = state.view === "compare" ? await this.records.rollout(this.otherRow()) : null;
    } catch (error) { // of a server that is gone
      byId("loading").hidden = false;
      byId("loading").textContent = `This rollout cannot be read: ${error.message}.`;
      return null;
    }
    if (ticket !== this.ticket) return null; // another one was opened meanwhile
    const how = { branch: Math.min(state.branch, rollout.branches.length), mode: state.mode, options: this.options, asChat: state.view === "chat" };
    if (other) this.compare.show(rollout, other, how);
    else this.rollout.show(rollout, how);
    if (other) {
      if (!still) byId("main").scrollTop = 0;
      return null;
    }
    if (place === undefined && !still) byId("main").scrollTop = 0;
    else if (place) this.rollout.goTo(place);
    if (state.token === null) return null;
    if (state.view === "tokens") this.point(state.token, { scroll: place === undefined && !still });
    else if (place === undefined && !still) this.rollout.goToTurn(turnOf(this.rollout.sections, state.token));
    return null;
  }

  otherRow() {
    const { row, other } = this.state;
    if (other && other !== row) return other;
    const group = this.records.rows.filter((one) => groupKey(one) === groupKey(row) && one !== row);
    // The one whose reward is furthest away says most.
    const apart = (one) => Math.abs((one.reward ?? 0) - (row.reward ?? 0));
    return group.sort((a, b) => apart(b) - apart(a))[0] ?? row;
  }

  partners(left, right) {
    const rows = this.records.rows.filter((one) => groupKey(one) === groupKey(left.row));
    if (!rows.includes(right.row)) rows.push(right.row);
    const choice = make("select", { id: "partner", onchange: () => this.go({ other: this.records.rows[Number(choice.value)] }) },
      rows.filter((row) => row !== left.row || rows.length === 1).map((row) =>
        make("option", { value: row.index }, `${rowName(row, false)}: reward ${figure(row.reward)}`)));
    choice.value = right.row.index;
    return [make("label", { for: "partner" }, "with "), choice];
  }

  toolbar() {
    const modes = this.modes.map((mode, k) => button([make("kbd", {}, String(k + 1)), ` ${mode}`],
      { class: "mode", "aria-pressed": String(this.state.mode === k + 1) }, () => this.setMode(k + 1)));
    const option = (name, label) => make("label", {}, make("input", {
      type: "checkbox", checked: this.options[name], onchange: () => this.setOption(name),
    }), ` ${label}`);
    return make("div", { class: "toolbar" },
      make("div", { class: "modes", role: "group", "aria-label": "What the tokens show" }, modes),
      option("spaces", "white space"), option("ids", "ids"),
      make("div", { class: "legend", dataset: { mode: MODES[this.state.mode - 1] } }, legend(MODES[this.state.mode - 1])));
  }

  /** The modes of these records: that of a teacher where one scored any. */
  get modes() {
    return this.records.hasTeacher ? MODES : MODES.slice(0, -1);
  }

  setMode(mode) {
    if (mode > this.modes.length) return;
    this.state.mode = mode;
    for (const view of [this.rollout, this.compare]) view.tokens.dataset.mode = MODES[mode - 1];
    for (const toolbar of document.querySelectorAll(".toolbar")) toolbar.replaceWith(this.toolbar());
    this.writeAddress();
  }

  setOption(name) {
    this.options[name] = !this.options[name];
    const texts = [this.rollout.text, ...(this.compare.sides ?? []).map(({ text }) => text)];
    for (const text of texts) text?.redraw();
    for (const toolbar of document.querySelectorAll(".toolbar")) toolbar.replaceWith(this.toolbar());
  }

  // ---- one token

  watch(element, textOf) {
    const found = (target) => {
      const text = textOf(target);
      const token = text?.token(target) ?? null;
      return token === null ? null : { text, token };
    };
    element.addEventListener("mouseover", (event) => {
      const at = found(event.target);
      if (at) this.showCard(at, event.target);
      else this.hideCard();
    });
    element.addEventListener("mouseleave", () => this.hideCard());
    element.addEventListener("click", (event) => {
      const at = found(event.target);
      if (at && this.state.view === "tokens") this.point(at.token, { scroll: false });
    });
  }

  showCard({ text, token }, span) {
    const card = byId("card");
    card.replaceChildren(...tokenCard(text, token, turnOf(sectionsOf(text.sequence), token)));
    card.hidden = false;
    this.cardSpan = span;
    this.placeCard();
  }

  /** Put the card beside its token; away with it once that is out of sight. */
  placeCard() {
    const card = byId("card");
    if (card.hidden) return;
    const span = this.cardSpan;
    const [box, own] = [span.getClientRects()[0] ?? span.getBoundingClientRect(), card.getBoundingClientRect()];
    const frame = byId("main").getBoundingClientRect();
    if (box.bottom < frame.top || box.top > frame.bottom) {
      this.hideCard();
      return;
    }
    const left = Math.max(8, Math.min(box.left, innerWidth - own.width - 8));
    const below = box.bottom + 8 + own.height < innerHeight;
    setStyle(card, { left: `${left}px`, top: `${below ? box.bottom + 6 : Math.max(8, box.top - own.height - 6)}px` });
  }

  hideCard() {
    byId("card").hidden = true;
  }

  /** Make a token of the rollout the current one. */
  point(token, { scroll = true } = {}) {
    const { text } = this.rollout;
    if (!text || isNone(token) || token < 0 || token >= text.sequence.tokens) return;
    this.state.token = token;
    const span = text.point(token, { scroll });
    if (span) {
      this.showCard({ text, token }, span);
      byId("said").textContent = byId("card").innerText.replace(/\s+/g, " ");
    }
    this.writeAddress();
  }

  unpoint() {
    this.rollout.text?.point(null);
    this.state.token = null;
    this.hideCard();
    this.writeAddress();
  }

  // ---- the filter

  /**
   * Show the rollouts that pass. With `keep`, another one is not opened where the one that is shown
   * does not pass; with `still`, the list does not move.
   */
  async filter(where, { keep = false, still = false } = {}) {
    const trouble = byId("filter-error");
    let words;
    try {
      words = parseFilter(where);
      if (!still) trouble.textContent = ""; // else of what somebody is typing
    } catch (error) {
      trouble.textContent = error.message;
      if (this.list.groups) return;
      words = []; // of an address: show everything
    }
    this.state.where = where;
    if (!still && byId("filter").value.trim() !== where.trim()) byId("filter").value = where;
    const later = words.filter(({ inChunks }) => inChunks);
    if (later.length) {
      if (!still) byId("list-facts").textContent = "Searching…";
      try {
        await this.records.later(later);
      } catch (error) { // of a server that is gone
        trouble.textContent = error.message;
        return;
      }
      if (where !== this.state.where) return;
    }
    const { rows } = this;
    const fails = failsOf(rows, words);
    this.shownRows = rows.filter((_, k) => fails[k] === 0);
    if (still) this.list.refresh(this.shownRows);
    else this.list.show(this.shownRows);
    const groups = this.list.groups.length;
    byId("list-facts").textContent = `${counted(this.shownRows.length, "rollout")}${this.list.byGroup && groups < this.shownRows.length ? ` in ${counted(groups, "group")}` : ""}`;
    if (!still) this.rollout.find.suggest(words.find(({ name, sign }) => name === "text" && sign === ":")?.wanted ?? "");
    this.facets.show(rows, words, fails);
    if (keep) return;
    if (this.state.view === "curves") this.curves.show(this.shownRows);
    const inSight = this.shownRows.includes(this.state.row);
    if (!inSight && this.shownRows.length) await this.openRollout(this.list.neighbour(0), this.state.view === "curves" ? { view: "curves" } : {});
    else this.list.mark(this.state.row);
    this.writeAddress();
  }

  pickRun(key) {
    this.state.run = key;
    this.describe();
    return this.filter(this.state.where);
  }

  /** Show rows that came or changed since, and leave everything else as it is. */
  async refresh(changed) {
    const { state } = this;
    const row = this.records.byRolloutId.get(state.row?.rollout_id) ?? null;
    state.row = row;
    this.describe();
    await this.filter(state.where, { keep: true, still: true });
    this.list.chosen = row;
    if (!row) await this.go({ row: this.list.neighbour(0) ?? null });
    else if (state.view === "curves") this.curves.show(this.shownRows);
    else if (changed.has(row)) await this.render(undefined, { still: true });
  }

  /** Bring the list into sight, where the screen is too narrow for both. */
  showList(then) {
    this.setScreen("list");
    this.list.reveal();
    then();
  }

  /** Choose the screen, "list" or "main", that is shown where there is room for one. */
  setScreen(screen) {
    document.body.dataset.screen = screen;
    // For readers with other senses, what is shown alone is the main part.
    const isAlone = this.narrow.matches && screen === "list";
    document.querySelector(".left").setAttribute("role", isAlone ? "main" : "complementary");
  }

  openStep(step, mode) {
    const several = new Set(this.rows.map((row) => row.mode)).size > 1;
    const words = [`step:${step}`, ...(several && mode ? [`mode=${mode}`] : [])];
    const rows = this.rows.filter(passes(parseFilter(words.join(" "))));
    return this.openRollout(rows[0], { view: "tokens" }).then(() => this.filter(words.join(" ")));
  }

  // ---- the address

  writeAddress() {
    const { row, branch, token, mode, view, other, where, run } = this.state;
    const parts = [["r", row?.rollout_id], ["b", branch || null], ["t", token], ["m", mode === 1 ? null : mode],
      ["v", view === plainView(row) ? null : view], ["o", view === "compare" ? other?.rollout_id : null], ["w", where || null], ["run", run]];
    const said = parts.filter(([, value]) => !isNone(value)).map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
    this.address = `#${said}`;
    // Not with each of the keys of somebody who holds one down: browsers then refuse it for a while.
    this.addressWritten ??= setTimeout(() => {
      this.addressWritten = null;
      if (location.hash !== this.seenHash) return; // a new address, which `hashchange` will read
      try {
        history.replaceState(null, "", this.address);
        this.seenHash = location.hash;
      } catch { /* a frame without an address of its own */ }
    }, 100);
  }

  /** What an address says. What it gets wrong is passed over. */
  async readAddress() {
    this.seenHash = location.hash;
    const said = new URLSearchParams(location.hash.slice(1));
    const whole = (name) => (/^\d+$/.test(said.get(name) ?? "") ? Number(said.get(name)) : null);
    const { byRolloutId, runs } = this.records;
    const run = said.get("run");
    this.state.run = runs.some(({ key, parts }) => key === run || parts.some((part) => part.key === run)) ? run : null;
    this.describe();
    await this.filter(said.get("w") ?? "", { keep: true });
    const row = byRolloutId.get(said.get("r")) ?? this.state.row ?? this.list.neighbour(0) ?? null;
    const mode = whole("m");
    const view = said.get("v");
    await this.go({
      row, branch: whole("b") ?? 0, token: whole("t"), other: byRolloutId.get(said.get("o")) ?? null,
      mode: mode >= 1 && mode <= this.modes.length ? mode : 1,
      view: ["chat", "tokens", "compare", "curves"].includes(view) ? view : plainView(row),
    });
    if (row?.tokens && isOneRollout(this.state.view)) this.reads = this.state.view;
    // On a narrow screen, which shows one of the two, a page that was opened without an address begins with the list.
    if (!said.has("r") && !said.has("v")) this.setScreen("list");
  }

  listen() {
    listenToKeys(this);
    addEventListener("hashchange", () => { if (location.hash !== this.seenHash) this.readAddress(); });
    byId("main").addEventListener("scroll", () => this.placeCard(), { passive: true });
    byId("filter").addEventListener("input", (event) => this.filter(event.target.value));
    byId("filter-form").addEventListener("submit", (event) => event.preventDefault());
    byId("by-group").addEventListener("change", (event) => {
      this.list.byGroup = event.target.checked;
      this.filter(this.state.where, { keep: true }).then(() => this.list.mark(this.state.row));
    });
    for (const tab of document.querySelectorAll("[data-view]")) {
      tab.addEventListener("click", () => this.go({ view: tab.dataset.view }));
    }
    byId("to-list").addEventListener("click", () => this.showList(() => byId("list").focus()));
    byId("show-keys").addEventListener("click", () => byId("keys").showModal());
  }
}

Records.open().then(async (records) => {
  await records.begin?.();
  const app = new App(records);
  window.app = app; // for whoever looks at the page from the console
  await app.readAddress();
  app.readyAt = performance.now();
  window.ready = true;
  records.follow?.(app);
}).catch((error) => {
  byId("loading").textContent = `This page cannot be read: ${error.message}. It needs a browser of 2023 or later.`;
  throw error;
});
