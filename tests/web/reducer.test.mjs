// The page's logic: (state, event) -> (state, effects). Run by test_reducer.py with node.
import assert from "node:assert/strict";
import { test } from "node:test";
import { commandOf, current, initial, labelOfDigit, matches, reduce } from "../../src/purereplay/web/static/reducer.js";
import { exact, suggestion, verdict } from "../../src/purereplay/web/static/view.js";

const STATUS = { statistics: {}, opinion: 0 };
const item = (sample, more = {}) => ({
  sample, name: `s${sample}`, given: "cat", suggested: "dog", chance: 0.9, agrees: false, clean: 0.1, decision: null,
  near: { given: [], suggested: [] }, ...more,
});
const LABELS = ["cat", "dog", "kite", "sloth", "xenon"].map((label, i) => ({ label, n: 100 - i }));

function run(state, ...events) {
  let effects = [];
  for (const event of events) [state, effects] = reduce(state, event);
  return [state, effects];
}
const key = (k) => ({ type: "key", key: k });
function started(n = 4, labels = LABELS) {
  const [state] = run(initial({ reviewer: "r", page: "p", nonce: "n" }), { type: "begun", data: { ...STATUS, labels, buffers: 1, title: "", start: "" } });
  const items = Array.from({ length: n }, (_, i) => item(i));
  return run(state, { type: "items", items, status: STATUS, key: JSON.stringify(state.filter) })[0];
}
const decisions = (state) => state.outbox.flatMap((one) => one.decisions.map((d) => [d.sample, d.kind, d.label]));

test("the state that goes in is not changed", () => {
  const state = Object.freeze(started());
  Object.freeze(state.trail).forEach(Object.freeze);
  run(state, key("Enter"), key("k"), key("z"), key("ArrowLeft"));
  assert.deepEqual(state, started());
});

test("keys decide on the image that is shown, and go on", () => {
  const [state] = run(started(), key("Enter"), key("k"), key("S"), key("x"));
  assert.deepEqual(decisions(state), [[0, "label", "dog"], [1, "keep", null], [2, "unsure", null], [3, "drop", null]]);
  assert.equal(current(state), null);
});

test("nothing is called saved before the server has answered", () => {
  let [state, effects] = run(started(), key("Enter"));
  assert.deepEqual(effects.map((e) => e.type), ["send", "next"]);
  assert.equal(state.n_saved, 0);
  assert.equal(state.trail[0].saving, true);
  assert.equal(state.message, "");
  [state] = run(state, { type: "saved", action: "n-0", items: [item(0, { decision: { kind: "label", label: "dog" } })], status: STATUS });
  assert.equal(state.n_saved, 1);
  assert.equal(state.trail[0].saving, false);
  assert.match(state.message, /^Saved\. s0: label dog/);
});

test("one request at a time, in the order of the decisions", () => {
  const [one, first] = run(started(), key("Enter"));
  const [two, second] = run(one, key("k"));
  assert.deepEqual(second.filter((e) => e.type === "send"), []);
  assert.equal(first[0].type, "send");
  const [, third] = run(two, { type: "saved", action: "n-0", items: [item(0)], status: STATUS });
  assert.ok(third.some((e) => e.type === "send"));
});

test("an answer to another action changes nothing", () => {
  const [state] = run(started(), key("Enter"));
  assert.equal(run(state, { type: "saved", action: "other", items: [], status: STATUS })[0], state);
});

test("a failure keeps the decision; one that is refused for good opens the image again", () => {
  const [state] = run(started(), key("Enter"), { type: "failed", text: "no answer" });
  assert.equal(state.outbox.length, 1);
  assert.equal(state.problem, "no answer");
  const [lost] = run(state, { type: "failed", text: "refused", lost: true });
  assert.deepEqual([lost.outbox.length, lost.trail[0].decision, lost.trail[0].saving], [0, null, false]);
});

test("the reason of a refusal stays until the next action", () => {
  const [refused] = run(started(), key("Enter"), key("k"), { type: "failed", text: "refused", lost: true });
  const [later] = run(refused, { type: "saved", action: "n-1", items: [item(1)], status: STATUS }, { type: "status", status: STATUS }, key("F5"));
  assert.equal(later.problem, "refused");
  assert.equal(run(later, key("ArrowRight"))[0].problem, "");
  assert.equal(run(later, { type: "do", what: "undo" })[0].problem, "");
  const [failed] = run(started(), { type: "failed", text: "no answer" }, { type: "status", status: STATUS });
  assert.equal(failed.problem, "");
});

test("arrows only move", () => {
  const [state] = run(started(), key("ArrowRight"), key("ArrowRight"), key("ArrowLeft"), key("ArrowLeft"), key("ArrowLeft"));
  assert.equal(state.at, 0);
  assert.deepEqual(decisions(state), []);
});

test("undo is sent after the decisions before it, and goes back to the image", () => {
  let [state] = run(started(), key("Enter"), key("Enter"), key("z"));
  assert.deepEqual(state.outbox.map((one) => one.undo), [false, false, true]);
  [state] = run(state, { type: "saved", action: "n-0", items: [item(0)], status: STATUS }, { type: "saved", action: "n-1", items: [item(1)], status: STATUS });
  [state] = run(state, { type: "undone", action: "n-2", items: [item(1)], status: STATUS });
  assert.deepEqual([state.at, current(state).sample, current(state).decision], [1, 1, null]);
  assert.match(state.message, /^Undone/);
});

test("undo of an image of an earlier visit brings it back before the present one", () => {
  let [state] = run(started(), key("z"));
  [state] = run(state, { type: "undone", action: "n-0", items: [item(77)], status: STATUS });
  assert.equal(current(state).sample, 77);
  assert.deepEqual(state.trail.map((one) => one.sample), [77, 0, 1, 2, 3]);
});

test("Enter keeps the label if the classifier agrees with it, and does nothing without a suggestion", () => {
  const start = started();
  const agreed = { ...start, trail: [item(0, { suggested: null, agrees: true })] };
  assert.deepEqual(decisions(run(agreed, key("Enter"))[0]), [[0, "keep", null]]);
  const [none] = run({ ...start, trail: [item(0, { suggested: null })] }, key("Enter"));
  assert.deepEqual(decisions(none), []);
  assert.match(none.message, /no suggestion/);
});

test("digits choose labels of the list, and labels that are digits have their own key", () => {
  assert.deepEqual(decisions(run(started(), key("3"))[0]), [[0, "label", "kite"]]);
  const digits = Array.from({ length: 10 }, (_, i) => ({ label: String(9 - i), n: 5 }));
  const state = started(2, digits);
  assert.deepEqual(state.keyed, ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]);
  assert.deepEqual(decisions(run(state, key("0"), key("7"))[0]), [[0, "label", "0"], [1, "label", "7"]]);
  assert.equal(labelOfDigit(started(), "9"), null);
});

test("typing finds one of hundreds of labels, also those whose first letter is a key", () => {
  const many = Array.from({ length: 500 }, (_, i) => ({ label: `class ${i}`, n: 1 })).concat(LABELS);
  let [state, effects] = run(started(2, many), key("d"));
  assert.deepEqual([state.picker.text, effects[0].type], ["d", "search"]);
  assert.equal(matches(state)[0].label, "dog");
  [state] = run(state, key("Enter"));
  assert.deepEqual(decisions(state), [[0, "label", "dog"]]);
  [state] = run(state, key("/"), { type: "typed", text: "kit" }, key("Enter"));
  assert.deepEqual(decisions(state)[1], [1, "label", "kite"]);
  [state] = run(started(2, many), key("/"), { type: "typed", text: "class 49" });
  assert.equal(matches(state)[0].label, "class 49");
  [state] = run(state, key("ArrowDown"), key("Enter"));
  assert.deepEqual(decisions(state), [[0, "label", "class 490"]]);
});

test("a label that is not there yet can be entered", () => {
  const [state] = run(started(), key("/"), { type: "typed", text: " Owl " });
  assert.deepEqual(matches(state), [{ label: "Owl", fresh: true }]);
  assert.deepEqual(decisions(run(state, key("Enter"))[0]), [[0, "label", "Owl"]]);
});

test("a label that was entered is one of the labels", () => {
  let [state] = run(started(), key("/"), { type: "typed", text: "Owl" }, key("Enter"));
  assert.deepEqual(state.labels, ["cat", "dog", "kite", "sloth", "xenon", "Owl"]);
  [state] = run(state, key("/"), { type: "typed", text: "Owl" });
  assert.deepEqual(matches(state), [{ label: "Owl", fresh: false }]);
  assert.deepEqual(run(state, key("Enter"))[0].labels, state.labels);
});

test("keys do nothing behind the help and the search", () => {
  const [helped] = run(started(), key("?"), key("Enter"), key("x"));
  assert.deepEqual(decisions(helped), []);
  assert.equal(run(helped, key("Escape"))[0].help, false);
  assert.equal(commandOf({ ...started(), picker: { text: "a", at: 0 } }, "x"), null);
});

test("more images are fetched ahead, and known ones are not shown twice", () => {
  const [state, effects] = run(started(4), key("ArrowRight"));
  assert.deepEqual(effects, [{ type: "next", n: 12 }]);
  const [more] = run(state, { type: "items", items: [item(3), item(9)], status: STATUS, key: JSON.stringify(state.filter) });
  assert.deepEqual(more.trail.map((one) => one.sample), [0, 1, 2, 3, 9]);
});

test("images of a filter that was changed meanwhile are not shown", () => {
  const old = JSON.stringify(started().filter);
  const [state] = run(started(), { type: "filter", name: "label", value: "cat" }, { type: "items", items: [item(5)], status: STATUS, key: old });
  assert.deepEqual(state.trail, []);
});

test("new suggestions do not change the order, nor the image on the screen", () => {
  const fresh = [item(0, { suggested: "kite" }), item(1, { suggested: "kite" })];
  const [asked, effects] = run(started(), { type: "status", status: { ...STATUS, opinion: 1 } });
  assert.deepEqual(effects, [{ type: "refresh", samples: [1, 2, 3] }]);
  const [state] = run(asked, { type: "refreshed", items: fresh });
  assert.deepEqual(state.trail.map((one) => [one.sample, one.suggested]), [[0, "dog"], [1, "kite"], [2, "dog"], [3, "dog"]]);
});

test("the grid decides on the selected images at once", () => {
  let [state, effects] = run(started(), key("g"));
  assert.ok(effects.some((e) => e.type === "pairs"));
  const pair = { given: "cat", suggested: "dog", n: 9 };
  [state, effects] = run(state, { type: "pairs", pairs: [pair] });
  assert.deepEqual(effects, [{ type: "cells", n: 48 }]);
  [state] = run(state, { type: "cells", items: [item(10), item(11), item(12)], pair });
  assert.match(run(state, key("Enter"))[0].message, /Select images first/);
  [state] = run(state, key("a"), { type: "toggle", sample: 11, at: 1 }, key("Enter"));
  assert.deepEqual(decisions(state), [[10, "label", "dog"], [12, "label", "dog"]]);
  assert.equal(state.outbox.length, 1); // one action, undone at once
  assert.deepEqual(state.grid.items.map((one) => one.sample), [11]);
});

test("the grid asks again if the pair was changed while its images loaded", () => {
  const pair = { given: "cat", suggested: "dog", n: 9 };
  const other = { given: "dog", suggested: "cat", n: 5 };
  let [state, effects] = run(started(), key("g"), { type: "pairs", pairs: [pair, other] }, { type: "pair", pair: other });
  assert.deepEqual(effects, []); // one request at a time
  [state, effects] = run(state, { type: "cells", items: [item(10)], pair });
  assert.deepEqual([state.grid.items, effects], [[], [{ type: "cells", n: 48 }]]);
  [state] = run(state, { type: "cells", items: [item(20)], pair: other });
  assert.deepEqual(state.grid.items.map((one) => one.sample), [20]);
});

test("arrows and the space bar select in the grid", () => {
  const pair = { given: "cat", suggested: "dog", n: 9 };
  const cells = Array.from({ length: 9 }, (_, i) => item(20 + i));
  const [state] = run(started(), key("g"), { type: "pairs", pairs: [pair] }, { type: "cells", items: cells, pair });
  const [moved] = run({ ...state, columns: 3 }, key("ArrowDown"), key("ArrowRight"), key(" "));
  assert.deepEqual([moved.grid.at, moved.grid.chosen], [4, [24]]);
});

test("several images are open again", () => {
  const [undone] = run(started(), key("z"));
  const all = [item(0), item(1)];
  assert.equal(run(undone, { type: "undone", action: undone.outbox[0].action, items: all, status: STATUS })[0].message, "Undone. 2 images are open again.");
});

test("an accuracy has a decimal", () => {
  assert.equal(exact(0.9815), "98.2 %");
});

test("a label that could not be judged has no probability, and no probability is certain", () => {
  assert.equal(verdict(item(0, { clean: null })), "could not be judged: too few samples to compare with");
  assert.match(suggestion(item(0, { clean: null, suggested: null, chance: null })), /no suggestion: too few/);
  assert.equal(verdict(item(0, { clean: 1, accepted: true, buffer: null })), "probability of being right: over 99.9 %; accepted by the filter");
  assert.equal(verdict(item(0, { clean: 0.2, accepted: false, buffer: 3 })), "probability of being right: 20 %; rejected by the filter, buffer 3");
  assert.match(suggestion(item(0, { chance: 0.99997 })), /over 99.9 %/);
});

test("the page asks where an image comes from, once it is shown", () => {
  const [state, effects] = run(started(), { type: "shown" });
  assert.deepEqual(effects, [{ type: "source", sample: 0 }]);
  const [told] = run(state, { type: "source", sample: 0, note: "file" });
  assert.deepEqual(told.source, { sample: 0, note: "file" });
  assert.deepEqual(run(told, { type: "shown" })[1], []);
});
