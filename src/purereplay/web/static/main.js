// Events in, effects out: the only module that talks to the server and to the browser's storage.
import { current, filterKey, initial, reduce } from "./reducer.js";
import { address, pixelated, render } from "./view.js";

const RETRY = 2000; // milliseconds
const random = () => crypto.getRandomValues(new Uint32Array(3)).join("-");

function kept(storage, name, fresh = false) {
  const value = (!fresh && storage.getItem(name)) || random();
  storage.setItem(name, value);
  return value;
}

const isReload = performance.getEntriesByType("navigation")[0]?.type === "reload";
let state = initial({
  reviewer: kept(localStorage, "reviewer"),
  page: kept(sessionStorage, "page", !isReload), // a duplicated tab is another page
  nonce: random(),
});

function dispatch(event) {
  const [next, effects] = reduce(state, event);
  state = next;
  render(state);
  if (state.ready) keep(state.subject, state.outbox);
  for (const effect of effects) EFFECTS[effect.type](effect);
}

// what is not sent belongs to one state: another one may be served at the same address
const keep = (subject, outbox) => sessionStorage.setItem(`outbox-${subject}`, JSON.stringify(outbox));
const isRefused = (error) => error.status === 400 || error.status === 413; // and would be every time

async function post(path, values) {
  const answer = await fetch(`api/${path}`, {
    method: "POST", headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ reviewer: state.reviewer, page: state.page, subject: state.subject, ...values }),
  });
  const type = answer.headers.get("content-type") ?? "";
  const data = type.startsWith("application/json") ? await answer.json() : { error: await answer.text() };
  if (!answer.ok) throw Object.assign(new Error(data.error), { status: answer.status });
  return data;
}

const EFFECTS = {
  async send() {
    const [first] = state.outbox;
    if (!first) return;
    try {
      if (first.undo) {
        const data = await post("undo", { action: first.action });
        dispatch({ type: "undone", action: first.action, items: data.items, status: data });
      } else {
        const data = await post("decide", { action: first.action, decisions: first.decisions });
        dispatch({ type: "saved", action: first.action, items: data.items, status: data });
      }
    } catch (error) {
      const lost = isRefused(error);
      dispatch({ type: "failed", text: said(error), lost });
      if (!lost) setTimeout(() => EFFECTS.send(), RETRY);
    }
  },
  async next({ n }) {
    const key = filterKey(state);
    const held = state.trail.slice(-400).map((one) => one.sample);
    try {
      const data = await post("next", { n, held, filter: state.filter });
      dispatch({ type: "items", items: data.items, status: data, key });
    } catch (error) {
      dispatch({ type: "failed", text: said(error) });
      setTimeout(() => EFFECTS.next({ n }), RETRY);
    }
  },
  async refresh({ samples }) {
    try {
      dispatch({ type: "refreshed", items: (await post("items", { samples })).items });
    } catch {} // the suggestions stay as they are
  },
  async source({ sample }) {
    try {
      dispatch({ type: "source", ...(await post("source", { samples: [sample] })) });
    } catch {} // the image is there all the same
  },
  async pairs() {
    try {
      dispatch({ type: "pairs", pairs: (await post("pairs", {})).pairs });
    } catch (error) {
      dispatch({ type: "failed", text: said(error) });
    }
  },
  async cells({ n }) {
    const pair = state.grid.pair;
    try {
      const filter = { label: pair.given, suggested: pair.suggested };
      dispatch({ type: "cells", items: (await post("next", { n, held: [], filter })).items, pair });
    } catch (error) {
      dispatch({ type: "failed", text: said(error) });
    }
  },
  preload({ items }) {
    for (const item of items) {
      new Image().src = address(state, item.sample, 1024);
      for (const n of [...item.near.given, ...item.near.suggested]) new Image().src = address(state, n, 128);
    }
  },
  search() {
    const input = document.getElementById("search");
    input.value = state.picker?.text ?? "";
    input.focus();
  },
  rest() {
    document.getElementById("main").focus({ preventScroll: true });
  },
  cell() {
    document.querySelector(`#cells button[data-cell="${state.grid.at}"]`)?.focus();
  },
};

function said(error) {
  return error.status ? error.message : "The server does not answer: start `purereplay review` again if it has ended.";
}

// ---------------------------------------------------------------- events

// otherwise the keys would belong to a search that has lost the focus
function leaveSearch() {
  if (state.picker) dispatch({ type: "typed", text: "" });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const on = event.target.tagName;
  if (event.target.id === "search") {
    if (event.key === "Tab") leaveSearch();
    if (["Enter", "Escape", "ArrowDown", "ArrowUp"].includes(event.key)) {
      event.preventDefault();
      if (state.picker) dispatch({ type: "key", key: event.key });
      else if (event.key === "Escape") EFFECTS.rest();
    }
    return;
  }
  if (on === "SELECT" || on === "INPUT") return;
  const isCell = event.target.dataset?.cell !== undefined;
  if ((on === "BUTTON" || on === "A") && (event.key === " " || (event.key === "Enter" && !isCell))) return; // it is pressed
  const columns = getComputedStyle(document.getElementById("cells")).gridTemplateColumns.split(" ").length;
  state = { ...state, columns };
  const before = state;
  dispatch({ type: "key", key: event.key });
  if (state !== before || event.key === " ") event.preventDefault();
});

document.addEventListener("click", (event) => {
  const target = event.target.closest("[data-do], [data-label], [data-cell]");
  if (!target) {
    if (!event.target.closest(".picker")) leaveSearch();
    return;
  }
  if (target.dataset.do) dispatch({ type: "do", what: target.dataset.do });
  else if (target.dataset.label !== undefined) dispatch({ type: "pick", label: target.dataset.label });
  else dispatch({ type: "toggle", sample: Number(target.dataset.sample), at: Number(target.dataset.cell) });
  // after the mouse, the keys belong to the page again
  if (event.detail > 0 && target.dataset.cell === undefined && !state.help) EFFECTS.rest();
});

document.getElementById("search").addEventListener("input", (event) => dispatch({ type: "typed", text: event.target.value }));
document.getElementById("help").addEventListener("cancel", (event) => {
  event.preventDefault();
  if (state.help) dispatch({ type: "do", what: "help" });
});
document.getElementById("filters").addEventListener("submit", (event) => event.preventDefault());
document.getElementById("filters").addEventListener("change", (event) => {
  const name = event.target.dataset.filter;
  const text = event.target.value;
  const value = text === "" ? null : ["decision", "verdict"].includes(name) ? text : JSON.parse(text);
  dispatch({ type: "filter", name, value });
  EFFECTS.rest();
});
document.getElementById("pair").addEventListener("change", (event) => {
  dispatch({ type: "pair", pair: state.grid.pairs[Number(event.target.value)] ?? null });
  EFFECTS.rest();
});
document.getElementById("image").addEventListener("load", (event) => {
  pixelated(event);
  dispatch({ type: "shown" });
});
document.getElementById("image").addEventListener("error", () => dispatch({ type: "unreadable" }));

// another reviewer need not wait for the images of a page that is closed
addEventListener("pagehide", () => {
  navigator.sendBeacon("api/release", new Blob([JSON.stringify({ page: state.page })], { type: "application/json" }));
});

setInterval(async () => {
  if (!state.ready || document.hidden) return;
  try {
    dispatch({ type: "status", status: await post("status", {}) });
    if (state.exhausted && !current(state)) EFFECTS.next({ n: 12 }); // new scores may have come
  } catch (error) {
    dispatch({ type: "failed", text: said(error) });
  }
}, 3000);

document.getElementById("filter-box").open = matchMedia("(min-width: 761px)").matches;

async function begun() {
  const answer = await fetch("api/begin");
  if (!answer.ok) throw Object.assign(new Error(await answer.text()), { status: answer.status });
  return answer.json();
}

// send what a page had not sent when it was reloaded; returns why the last one was refused, if any was
async function sendKept(subject) {
  let refused = "";
  const unsent = JSON.parse(sessionStorage.getItem(`outbox-${subject}`) ?? "[]");
  while (unsent.length) {
    const [{ undo, action, decisions }] = unsent;
    try {
      await post(undo ? "undo" : "decide", { action, decisions, subject });
    } catch (error) {
      if (!isRefused(error)) throw error;
      refused = said(error);
    }
    unsent.shift();
    keep(subject, unsent);
  }
  return refused;
}

async function begin() {
  try {
    const refused = await sendKept((await begun()).subject);
    document.getElementById("problem").hidden = true;
    dispatch({ type: "begun", data: await begun() });
    EFFECTS.rest();
    if (refused) dispatch({ type: "failed", text: refused, lost: true });
  } catch (error) {
    document.getElementById("problem").textContent = said(error);
    document.getElementById("problem").hidden = false;
    setTimeout(begin, RETRY);
  }
}

begin();
