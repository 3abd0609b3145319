// The page as a function of the state. Names and labels are set as text only, never as HTML.
import { current, filterKey, matches, said } from "./reducer.js";

const $ = (id) => document.getElementById(id);
const shown = new Map(); // what a part of the page shows now

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("aria-") || name === "role") made.setAttribute(name, value);
    else if (name === "data") Object.assign(made.dataset, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

export function address(state, sample, size) {
  return `image/${sample}?size=${size}&v=${state.start}`;
}

// redraw a part only if what it shows has changed
function part(name, value, draw) {
  const text = JSON.stringify(value);
  if (shown.get(name) === text) return;
  shown.set(name, text);
  draw();
}

function set(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

export function render(state) {
  set("title", state.title);
  for (const view of ["focus", "grid"]) {
    $(view).hidden = state.view !== view;
    $(`view-${view}`).setAttribute("aria-pressed", String(state.view === view));
  }
  filters(state);
  if (state.view === "focus") focus(state);
  else grid(state);
  actions(state);
  picker(state);
  numbers(state);
  set("message", state.message);
  const unsaved = state.outbox.length && state.problem && !state.refused ? ` ${unsent(state.outbox.length)} not saved yet and will be sent again.` : "";
  set("problem", state.problem ? state.problem + unsaved : "");
  $("problem").hidden = !state.problem;
  if (state.help !== $("help").open) state.help ? $("help").showModal() : $("help").close();
}

function filters(state) {
  part("filters", [state.labels, state.buffers], () => {
    const any = () => element("option", { value: "", textContent: "any" });
    const chosen = $("filter-label").value; // labels may have been added
    $("filter-label").replaceChildren(any(), ...state.labels.map((l) => element("option", { value: JSON.stringify(l), textContent: l })));
    $("filter-label").value = chosen;
    const buffers = Array.from({ length: state.buffers }, (_, i) => element("option", { value: String(i), textContent: String(i) }));
    $("filter-buffer").replaceChildren(any(), ...buffers);
    $("buffer-box").hidden = state.buffers < 2;
  });
  $("filter-box").hidden = state.view !== "focus";
  $("move").hidden = state.view !== "focus";
}

function focus(state) {
  const item = current(state);
  part("focus", [item, state.ready, state.exhausted, filterKey(state)], () => {
    const image = $("image");
    image.hidden = !item;
    $("empty").hidden = Boolean(item);
    if (!item) {
      image.removeAttribute("src");
      set("empty", !state.ready || !state.exhausted ? "Loading…" : "No more images with these filters. What you decided is saved.");
    } else {
      const source = address(state, item.sample, 1024);
      if (image.getAttribute("src") !== source) image.src = source;
      image.alt = `Image ${item.name}, given label ${item.given}`;
    }
    set("name", item ? item.name : "");
    set("given", item ? item.given : "");
    set("given-note", item ? verdict(item) : "");
    set("suggested", item ? item.suggested ?? (item.agrees ? item.given : "–") : "");
    set("suggested-note", item ? suggestion(item) : "");
    near("near-given", state, item?.near.given ?? [], item?.given);
    near("near-suggested", state, item?.near.suggested ?? [], item?.suggested);
  });
  set("source", item && state.source?.sample === item.sample ? state.source.note : "");
}

export function verdict(item) {
  if (item.clean === null) return "could not be judged: too few samples to compare with";
  const buffer = item.buffer === null ? "" : `, buffer ${item.buffer}`;
  return `probability of being right: ${chance(item.clean)}; ${item.accepted ? "accepted" : "rejected"} by the filter${buffer}`;
}

export function suggestion(item) {
  if (item.suggested !== null) return item.chance === null ? "by the classifier" : `by the classifier, probability ${chance(item.chance)}`;
  if (item.agrees) return `the classifier agrees with the given label, probability ${chance(item.chance)}`;
  return item.clean === null ? "no suggestion: too few samples to compare with" : "no suggestion yet";
}

function near(id, state, numbers, label) {
  const images = numbers.map((n) => element("img", { src: address(state, n, 128), alt: `Believed to be ${label}`, loading: "eager", onload: pixelated }));
  $(id).replaceChildren(...images);
}

// small images are enlarged without blur
export function pixelated(event) {
  const image = event.target;
  image.classList.toggle("small", image.naturalWidth > 0 && image.naturalWidth <= 32);
}

function grid(state) {
  part("pairs", [state.grid.pairs, state.grid.pair], () => {
    const options = state.grid.pairs.map((one, i) => element("option", { value: String(i), textContent: `${one.given} → ${one.suggested} (${one.n})` }));
    $("pair").replaceChildren(...(options.length ? options : [element("option", { value: "", textContent: "no pairs" })]));
    if (options.length) $("pair").value = String(Math.max(0, state.grid.pairs.findIndex((p) => p.given === state.grid.pair?.given && p.suggested === state.grid.pair?.suggested)));
  });
  part("cells", state.grid.items.map((one) => one.sample), () => {
    const cells = state.grid.items.map((one, i) => {
      const image = element("img", { src: address(state, one.sample, 128), alt: `Image ${one.name}, given ${one.given}, suggested ${one.suggested ?? "none"}`, onload: pixelated });
      const note = element("span", { className: "tick", textContent: one.chance === null ? "" : chance(one.chance) });
      return element("li", {}, element("button", { type: "button", "aria-pressed": "false", data: { sample: one.sample, cell: i } }, image, note));
    });
    $("cells").replaceChildren(...cells);
  });
  for (const cell of $("cells").querySelectorAll("button")) {
    cell.setAttribute("aria-pressed", String(state.grid.chosen.includes(Number(cell.dataset.sample))));
    cell.tabIndex = Number(cell.dataset.cell) === state.grid.at ? 0 : -1;
  }
  const selected = `${state.grid.chosen.length} of ${state.grid.items.length} selected`;
  set("chosen", state.grid.pairs.length ? selected : "No suggestion differs from its label.");
}

function actions(state) {
  const item = state.view === "focus" ? current(state) : null;
  const made = item?.decision ? `${item.saving ? "Saving" : "Saved"}: ${said(item.decision)}` : "";
  set("decision", state.view === "focus" ? made : "");
  $("decision").dataset.saved = String(state.n_saved);
  part("classes", [state.keyed, state.labels.length], () => {
    const own = state.keyed.map((label, i) => {
      const digit = /^\d$/.test(label) ? label : state.labels.includes(String(i + 1)) ? null : String(i + 1);
      const key = digit === null ? [] : [" ", element("kbd", { textContent: digit })];
      return element("button", { type: "button", title: label, data: { label } }, element("span", { textContent: label }), ...key);
    });
    $("classes").replaceChildren(...own);
  });
}

function picker(state) {
  const found = matches(state);
  const input = $("search");
  if (!state.picker && input.value) input.value = "";
  if (state.picker && document.activeElement !== input) input.value = state.picker.text;
  input.setAttribute("aria-expanded", String(found.length > 0));
  $("matches").hidden = !found.length;
  part("matches", [found, state.picker?.at], () => {
    const rows = found.map((one, i) => element("li", { role: "option", id: `match-${i}`, "aria-selected": String(i === state.picker.at), data: { label: one.label }, textContent: one.fresh ? `New label “${one.label}”` : one.label }));
    $("matches").replaceChildren(...rows);
    rows[state.picker?.at]?.scrollIntoView({ block: "nearest" });
  });
  if (found.length) input.setAttribute("aria-activedescendant", `match-${state.picker.at}`);
  else input.removeAttribute("aria-activedescendant");
}

function numbers(state) {
  const status = state.status;
  if (!status) return;
  part("numbers", status, () => {
    const s = status.statistics;
    const rows = [["Decided", `${count(s.decided)} of ${count(s.scored)} scored`]];
    if (s.wrong_share) rows.push(["Wrong labels among the reviewed", percent(s.wrong_share.rate), `${count(s.wrong)} of ${count(s.judged)}; ${percent(s.wrong_share.low)} to ${percent(s.wrong_share.high)}`]);
    if (s.left) rows.push(["Wrong labels left, estimated", count(s.left.rate), `${count(s.left.low)} to ${count(s.left.high)}`]);
    if (s.unjudged) rows.push(["Could not be judged", count(s.unjudged), "too few samples to compare with"]);
    if (s.per_minute) rows.push(["Labels per minute", s.per_minute.toFixed(0)]);
    if (s.unsure || s.dropped) rows.push(["Not sure, dropped", `${count(s.unsure)}, ${count(s.dropped)}`]);
    if (status.accuracy !== null) rows.push(["Accuracy on the test folder", exact(status.accuracy), `${exact(status.first_accuracy)} at the start`]);
    if (status.pages > 1) rows.push(["Pages open now", count(status.pages)]);
    $("numbers").replaceChildren(...rows.map(([name, value, note]) => element("div", {}, element("dt", { textContent: name }), element("dd", {}, value, note ? element("small", { textContent: ` (${note})` }) : ""))));
    set("hint", s.hint ?? "");
    const learned = !status.teaches ? "" : status.last > status.absorbed ? "Saved decisions are learned in a moment." : "All decisions are learned.";
    const now = status.activity === "ready" ? "" : status.activity.endsWith(".") ? status.activity : status.activity && `Now: ${status.activity}.`;
    set("activity", [now, s.decided ? learned : ""].filter(Boolean).join(" "));
  });
}

const unsent = (n) => (n === 1 ? "1 change is" : `${n} changes are`);
const count = (n) => Math.round(n).toLocaleString("en");
export const exact = (p) => `${(100 * p).toFixed(1)} %`;
// a probability is never shown as certain
const chance = (p) => (p >= 0.9995 ? "over 99.9 %" : p < 0.0005 ? "under 0.1 %" : `${(100 * p).toFixed(p > 0.9 || p < 0.1 ? 1 : 0)} %`);
const percent = (p) => `${(100 * p).toFixed(p > 0 && p < 0.1 ? 1 : 0)} %`;
