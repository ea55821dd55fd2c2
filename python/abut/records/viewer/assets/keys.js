"use strict";
// What the keys do, outside of fields and dialogs.

const VIEW_KEYS = { h: "chat", t: "tokens", c: "compare", v: "curves" };

function listenToKeys(app) {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const field = event.target.closest?.("input:not([type=checkbox]), textarea, select, dialog");
    if (event.key === "Escape") return escape(app, field, event);
    if (field) return;
    if (pressed(app, event)) event.preventDefault();
  });
}

/** Do what a key stands for; whether it stands for anything. */
function pressed(app, event) {
  const { state, rollout } = app;
  const { key } = event;
  const compared = state.view === "compare";
  if (key === "j" || key === "k") {
    const row = app.list.neighbour(key === "j" ? 1 : -1);
    if (row) app.openRollout(row);
  } else if (key === "[" || key === "]") {
    const by = key === "]" ? 1 : -1;
    if (state.view === "chat") rollout.stepTurn(by);
    else if (!compared && rollout.text) app.point(rollout.turnFrom(state.token, by));
  } else if (key === "n" || key === "p") {
    const by = key === "n" ? 1 : -1;
    if (compared) app.compare.next(by);
    else if (rollout.text) toSeam(app, rollout.seamFrom(state.token, by));
  } else if (key === "ArrowLeft" || key === "ArrowRight") {
    if (event.target !== rollout.tokens || compared) return false;
    app.point(state.token === null ? 0 : state.token + (key === "ArrowRight" ? 1 : -1));
  } else if (/^[1-5]$/.test(key)) app.setMode(Number(key));
  else if (key === "w") app.setOption("spaces");
  else if (key === "i") app.setOption("ids");
  else if (VIEW_KEYS[key]) app.go({ view: VIEW_KEYS[key] });
  else if (key === "/") app.showList(() => byId("filter").select());
  else if (key === "f" && byId("find")) rollout.find.input.select();
  else if ((key === "." || key === ",") && byId("find")) rollout.find.go(key === "." ? 1 : -1);
  else if (key === "?") byId("keys").showModal();
  else return false;
  return true;
}

function toSeam(app, token) {
  if (isNone(token)) byId("said").textContent = "all seams are exact";
  else app.point(token);
}

function escape(app, field, event) {
  if (field && !field.closest("dialog")) {
    event.preventDefault(); // browsers empty a field of a search, and do not say so
    field.blur();
  } else if (!field) app.unpoint();
}
