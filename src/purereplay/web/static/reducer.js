// The logic of the page: reduce(state, event) returns [state, effects] and changes nothing else.
// A decision goes into the outbox first. The page says "saved" once the server has answered.

const AHEAD = 6; // images fetched in advance
const TRAIL = 500; // images that can be gone back to with the arrows
const KEYED = 9; // labels with a key of their own
export const CELLS = 48; // images of the grid

export function initial(identity) {
  return {
    ...identity, // reviewer, page, nonce
    ready: false, view: "focus", help: false, title: "", start: "", subject: null,
    labels: [], keyed: [], buffers: 0,
    filter: { label: null, buffer: null, verdict: null, decision: "open" },
    source: null, // { sample, note }: where the large image comes from
    trail: [], at: 0, asking: false, exhausted: false,
    grid: { pairs: [], pair: null, items: [], at: 0, chosen: [], asking: false },
    outbox: [], n_actions: 0, n_saved: 0, opinion: 0,
    picker: null, // { text, at } while a label is searched
    status: null, message: "", problem: "", refused: false, // refused: the problem is told until the next action
  };
}

export function reduce(state, event) {
  const handler = HANDLERS[event.type];
  return handler ? handler(state.refused && isAction(state, event) ? { ...state, problem: "", refused: false } : state, event) : [state, []];
}

function isAction(state, event) {
  return event.type === "key" ? commandOf(state, event.key) !== null : ["do", "pick", "toggle", "pair", "filter"].includes(event.type);
}

const answered = (state) => (state.refused ? state.problem : "");

const HANDLERS = {
  begun(state, { data }) {
    const labels = data.labels.map((one) => one.label);
    const keyed = labels.length <= KEYED + 1 && labels.every((l) => /^\d$/.test(l)) ? [...labels].sort()
      : [...data.labels].sort((a, b) => b.n - a.n || (a.label < b.label ? -1 : 1)).slice(0, KEYED).map((one) => one.label).sort();
    return ask({ ...state, ready: true, labels, keyed, buffers: data.buffers, title: data.title, start: data.start, subject: data.subject, status: data });
  },
  items(state, { items, status, key }) {
    if (key !== filterKey(state)) return [{ ...state, asking: false }, []]; // of a filter that was changed meanwhile
    const known = new Set(state.trail.map((one) => one.sample));
    const fresh = items.filter((one) => !known.has(one.sample));
    const cut = Math.max(0, state.trail.length + fresh.length - TRAIL);
    const next = {
      ...state, asking: false, exhausted: fresh.length === 0, status: status ?? state.status,
      trail: [...state.trail, ...fresh].slice(cut), at: Math.max(0, state.at - cut),
    };
    return [next, [{ type: "preload", items: fresh }]];
  },
  saved(state, { action, items, status }) {
    const [done, ...outbox] = state.outbox;
    if (!done || done.action !== action) return [state, []];
    const next = merged({ ...state, outbox, status: status ?? state.status, n_saved: state.n_saved + items.length, problem: answered(state) }, items);
    const one = items.length === 1 ? `${items[0].name}: ${said(items[0].decision)}` : `${items.length} images`;
    const isDone = next.view === "grid" && !next.grid.items.length && !outbox.length; // of this pair
    return ask({ ...next, message: `Saved. ${one}` }, [...(outbox.length ? [{ type: "send" }] : []), ...(isDone ? [{ type: "pairs" }] : [])]);
  },
  undone(state, { action, items, status }) {
    const [done, ...outbox] = state.outbox;
    if (!done || done.action !== action) return [state, []];
    let next = { ...state, outbox, status: status ?? state.status, problem: answered(state) };
    const effects = outbox.length ? [{ type: "send" }] : [];
    if (!items.length) return [{ ...next, message: "There is nothing to undo." }, effects];
    next = { ...next, message: `Undone. ${items.length === 1 ? `${items[0].name} is` : `${items.length} images are`} open again.` };
    const known = new Set(next.trail.map((one) => one.sample));
    const missing = items.filter((one) => !known.has(one.sample));
    next = merged({ ...next, trail: [...next.trail.slice(0, next.at), ...missing, ...next.trail.slice(next.at)] }, items);
    const at = next.trail.findIndex((one) => one.sample === items[0].sample);
    const shown = new Set(next.grid.items.map((one) => one.sample));
    const back = items.filter((one) => !shown.has(one.sample) && next.grid.pair && samePair(one, next.grid.pair));
    return [{ ...next, at, exhausted: false, grid: { ...next.grid, items: [...back, ...next.grid.items] } }, effects];
  },
  failed(state, { text, lost }) {
    if (!lost) return [{ ...state, asking: false, problem: text, refused: false, grid: { ...state.grid, asking: false } }, []];
    // the server refused this action for good: the image is open again
    const [bad, ...outbox] = state.outbox;
    const samples = new Set((bad?.decisions ?? []).map((one) => one.sample));
    const trail = state.trail.map((one) => (samples.has(one.sample) ? { ...one, decision: null, saving: false } : one));
    return [{ ...state, outbox, trail, problem: text, refused: true }, outbox.length ? [{ type: "send" }] : []];
  },
  status(state, { status }) {
    const next = { ...state, status, problem: state.outbox.length ? state.problem : answered(state) };
    const open = openAhead(next).map((one) => one.sample);
    const isNew = status.opinion !== state.opinion && open.length;
    return [isNew ? { ...next, opinion: status.opinion } : next, isNew ? [{ type: "refresh", samples: open.slice(0, 50) }] : []];
  },
  refreshed(state, { items }) {
    const found = new Map(items.map((one) => [one.sample, one]));
    const open = new Set(openAhead(state).map((one) => one.sample)); // decisions may have been made meanwhile
    return [{ ...state, trail: state.trail.map((one) => (open.has(one.sample) ? found.get(one.sample) ?? one : one)) }, []];
  },
  shown(state) {
    const item = current(state);
    return [state, item && state.source?.sample !== item.sample ? [{ type: "source", sample: item.sample }] : []];
  },
  source(state, { sample, note }) {
    return [{ ...state, source: { sample, note } }, []];
  },
  unreadable(state) {
    return [{ ...state, message: `The image ${current(state)?.name} cannot be read: it was moved, deleted or damaged.` }, []];
  },
  pairs(state, { pairs }) {
    const grid = { ...state.grid, pairs };
    const pair = grid.pair && pairs.find((one) => samePair(one, grid.pair)) ? grid.pair : pairs[0] ?? null;
    return askGrid({ ...state, grid: { ...grid, pair, items: grid.pair === pair ? grid.items : [], chosen: [], at: 0 } });
  },
  cells(state, { items, pair }) {
    if (!state.grid.pair || !samePair(pair, state.grid.pair)) return askGrid({ ...state, grid: { ...state.grid, asking: false } }); // of a pair that was changed meanwhile
    const known = new Set(state.grid.items.map((one) => one.sample));
    const all = [...state.grid.items, ...items.filter((one) => !known.has(one.sample))];
    return [{ ...state, grid: { ...state.grid, items: all, asking: false } }, []];
  },
  pair(state, { pair }) {
    return askGrid({ ...state, grid: { ...state.grid, pair, items: [], chosen: [], at: 0 } });
  },
  filter(state, { name, value }) {
    return ask({ ...state, filter: { ...state.filter, [name]: value }, trail: [], at: 0, exhausted: false, asking: false });
  },
  typed(state, { text }) {
    return [{ ...state, picker: text === "" ? null : { text, at: 0 } }, []];
  },
  pick(state, { label }) {
    return decide({ ...state, picker: null }, "label", label);
  },
  toggle(state, { sample, at }) {
    const chosen = state.grid.chosen.includes(sample) ? state.grid.chosen.filter((n) => n !== sample) : [...state.grid.chosen, sample];
    return [{ ...state, grid: { ...state.grid, chosen, at: at ?? state.grid.at } }, []];
  },
  key(state, { key }) {
    const command = commandOf(state, key);
    return command ? perform(state, command) : [state, []];
  },
  do(state, { what }) {
    return perform(state, { what });
  },
};

// ---------------------------------------------------------------- keys

export function commandOf(state, key) {
  if (state.help) return key === "Escape" || key === "?" ? { what: "help" } : null;
  if (state.picker) {
    const moves = { Enter: "choose", Escape: "close", ArrowDown: "down", ArrowUp: "up" };
    return moves[key] ? { what: moves[key] } : null;
  }
  const lower = key.length === 1 ? key.toLowerCase() : key;
  const inGrid = state.view === "grid";
  const moves = inGrid
    ? { ArrowLeft: "cell-left", ArrowRight: "cell-right", ArrowUp: "cell-up", ArrowDown: "cell-down", " ": "cell", a: "all" }
    : { ArrowLeft: "back", ArrowRight: "forward" };
  const common = { Enter: "accept", k: "keep", s: "unsure", x: "drop", z: "undo", g: inGrid ? "focus" : "grid", "?": "help", "/": "search" };
  const what = moves[lower] ?? common[lower];
  if (what) return { what };
  if (/^\d$/.test(key)) {
    const label = labelOfDigit(state, key);
    return label === null ? null : { what: "label", label };
  }
  return key.length === 1 && /\p{L}|\p{N}/u.test(key) ? { what: "search", text: key } : null;
}

export function labelOfDigit(state, digit) {
  if (state.labels.includes(digit)) return digit;
  return state.keyed[Number(digit) - 1] ?? null;
}

export function matches(state) {
  if (!state.picker) return [];
  const text = state.picker.text.trim().toLowerCase();
  const starts = state.labels.filter((label) => label.toLowerCase().startsWith(text));
  const holds = state.labels.filter((label) => !label.toLowerCase().startsWith(text) && label.toLowerCase().includes(text));
  const found = [...starts, ...holds].slice(0, 30).map((label) => ({ label, fresh: false }));
  const exact = state.labels.some((label) => label === state.picker.text.trim());
  return text && !exact ? [...found, { label: state.picker.text.trim(), fresh: true }] : found;
}

// ---------------------------------------------------------------- commands

function perform(state, command) {
  const item = current(state);
  switch (command.what) {
    case "accept": return accept(state);
    case "keep": return decide(state, "keep", null);
    case "unsure": return decide(state, "unsure", null);
    case "drop": return decide(state, "drop", null);
    case "label": return decide(state, "label", command.label);
    case "undo": return post({ ...state, message: "" }, { undo: true, decisions: [] });
    case "back": return [{ ...state, at: Math.max(0, state.at - 1), message: "" }, []];
    case "forward": return ask({ ...state, at: Math.min(state.trail.length, item ? state.at + 1 : state.at), message: "" });
    case "help": return [{ ...state, help: !state.help }, []];
    case "focus": return [{ ...state, view: "focus", picker: null }, [{ type: "rest" }]];
    case "grid": return [{ ...state, view: "grid", picker: null }, [{ type: "pairs" }, { type: "rest" }]];
    case "search": return [{ ...state, picker: { text: command.text ?? "", at: 0 } }, [{ type: "search" }]];
    case "close": return [{ ...state, picker: null }, [{ type: "rest" }]];
    case "down": return [{ ...state, picker: { ...state.picker, at: Math.min(state.picker.at + 1, matches(state).length - 1) } }, []];
    case "up": return [{ ...state, picker: { ...state.picker, at: Math.max(0, state.picker.at - 1) } }, []];
    case "choose": {
      const found = matches(state)[state.picker.at];
      if (!found) return [{ ...state, picker: null }, [{ type: "rest" }]];
      const [next, effects] = decide({ ...state, picker: null }, "label", found.label);
      return [next, [...effects, { type: "rest" }]];
    }
    case "all": return [{ ...state, grid: { ...state.grid, chosen: state.grid.items.map((one) => one.sample) } }, []];
    case "none": return [{ ...state, grid: { ...state.grid, chosen: [] } }, []];
    case "cell": {
      const cell = state.grid.items[state.grid.at];
      return cell ? HANDLERS.toggle(state, { sample: cell.sample }) : [state, []];
    }
    default: return moveCell(state, command.what);
  }
}

function moveCell(state, what) {
  const step = { "cell-left": -1, "cell-right": 1, "cell-up": -(state.columns ?? 6), "cell-down": state.columns ?? 6 }[what];
  if (step === undefined) return [state, []];
  const at = Math.min(Math.max(0, state.grid.at + step), Math.max(0, state.grid.items.length - 1));
  return [{ ...state, grid: { ...state.grid, at } }, [{ type: "cell" }]];
}

export function current(state) {
  return state.trail[state.at] ?? null;
}

// open images whose suggestion may change; the one on the screen keeps its own
function openAhead(state) {
  return state.trail.slice(state.at).filter((one, i) => !one.decision && (i > 0 || (one.suggested === null && !one.agrees)));
}

function targets(state) {
  if (state.view === "focus") return current(state) ? [current(state)] : [];
  return state.grid.items.filter((one) => state.grid.chosen.includes(one.sample));
}

function accept(state) {
  const chosen = targets(state);
  if (chosen.some((one) => one.suggested === null && !one.agrees)) {
    return [{ ...state, message: "There is no suggestion yet: choose a label, or keep the given one." }, []];
  }
  return submit(state, chosen, (one) => (one.suggested === null ? { kind: "keep", label: null } : { kind: "label", label: one.suggested }));
}

function decide(state, kind, label) {
  return submit(state, targets(state), () => ({ kind, label }));
}

function submit(state, chosen, choice) {
  if (!chosen.length) {
    return [{ ...state, message: state.view === "grid" ? "Select images first." : "There is no image to decide on." }, []];
  }
  const made = new Map(chosen.map((one) => [one.sample, choice(one)]));
  const decisions = chosen.map(({ sample, name }) => ({ sample, name, ...made.get(sample) }));
  const mark = (one) => (made.has(one.sample) ? { ...one, decision: made.get(one.sample), saving: true } : one);
  const entered = [...made.values()].map((one) => one.label).filter((label) => label !== null && !state.labels.includes(label));
  let next = { ...state, labels: [...state.labels, ...new Set(entered)], trail: state.trail.map(mark), message: "" };
  if (state.view === "focus") next = { ...next, at: Math.min(state.at + 1, state.trail.length) };
  const items = next.grid.items.filter((one) => !made.has(one.sample));
  next = { ...next, grid: { ...next.grid, items, chosen: [], at: 0 } };
  const [sent, effects] = post(next, { undo: false, decisions });
  const [asked, more] = state.view === "focus" ? ask(sent) : [sent, []];
  return [asked, [...effects, ...more]];
}

function post(state, what) {
  const action = `${state.nonce}-${state.n_actions}`;
  const outbox = [...state.outbox, { action, ...what }];
  return [{ ...state, outbox, n_actions: state.n_actions + 1 }, outbox.length === 1 ? [{ type: "send" }] : []];
}

// ---------------------------------------------------------------- more images

export function filterKey(state) {
  return JSON.stringify(state.filter);
}

function ask(state, effects = []) {
  const ahead = state.trail.length - state.at;
  if (state.asking || !state.ready || ahead >= AHEAD || (state.exhausted && ahead > 0)) return [state, effects];
  return [{ ...state, asking: true }, [...effects, { type: "next", n: 2 * AHEAD }]];
}

function askGrid(state) {
  if (!state.grid.pair || state.grid.asking) return [state, []];
  return [{ ...state, grid: { ...state.grid, asking: true } }, [{ type: "cells", n: CELLS }]];
}

function merged(state, items) {
  const found = new Map(items.map((one) => [one.sample, one]));
  const pending = new Set(state.outbox.flatMap((one) => one.decisions.map((d) => d.sample)));
  const join = (one) => (found.has(one.sample) && !pending.has(one.sample) ? { ...found.get(one.sample), saving: false } : one);
  return { ...state, trail: state.trail.map(join) };
}

function samePair(a, b) {
  return a.given === b.given && a.suggested === b.suggested;
}

export function said(decision) {
  if (!decision) return "no decision";
  return { keep: "label kept", label: `label ${decision.label}`, unsure: "not sure", drop: "dropped" }[decision.kind];
}
