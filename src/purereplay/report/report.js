"use strict";
// Histograms of centrality for any buffer and label, drawn from the data in the page.
(() => {
  const source = document.getElementById("histograms");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const [buffers, labels] = ["buffer", "label"].map((id) => document.getElementById(`choose-${id}`));
  const make = (tag, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const option = (text, value) => Object.assign(document.createElement("option"), { textContent: text, value });
  buffers.replaceChildren(...data.buffers.map((b, i) => option(`${b.number}`, i)));

  function draw(box, one) {
    const [w, h, left, bottom] = [380, 210, 40, 34];
    const svg = make("svg", { viewBox: `0 0 ${w} ${h}`, width: w, role: "img", "aria-label": box.dataset.name });
    if (!one) {
      svg.append(make("text", { x: 20, y: 60, fill: "var(--soft)", "font-size": 13 }, box.dataset.none));
      box.replaceChildren(svg);
      return;
    }
    const { low, high, counts, curves } = one;
    const top = Math.max(...counts, ...curves.flat().filter((v) => v !== null), 1);
    const x = (i, n) => left + ((w - left - 10) * i) / n;
    const y = (v) => h - bottom - ((h - bottom - 12) * v) / top;
    counts.forEach((c, i) => svg.append(make("rect", {
      x: x(i, counts.length) + 0.5, y: y(c), width: (w - left - 10) / counts.length - 1, height: h - bottom - y(c), fill: "var(--grey)", opacity: 0.55,
    })));
    curves.forEach((curve, k) => svg.append(make("polyline", {
      points: curve.map((v, i) => (v === null ? "" : `${x(i + 0.5, curve.length)},${y(v)}`)).filter(Boolean).join(" "), fill: "none", "stroke-width": 2.5,
      stroke: k ? "var(--blue)" : "var(--orange)", "stroke-dasharray": k ? "none" : "6 3",
    })));
    svg.append(make("line", { x1: left, x2: w - 10, y1: h - bottom, y2: h - bottom, stroke: "var(--ink)" }));
    for (const [at, value] of [[left, low], [w - 10, high]]) {
      svg.append(make("text", { x: at, y: h - bottom + 14, "font-size": 11, "text-anchor": at === left ? "start" : "end", fill: "var(--ink)" }, value.toPrecision(3)));
    }
    svg.append(make("text", { x: (w + left) / 2, y: h - 4, "font-size": 11, "text-anchor": "middle", fill: "var(--soft)" }, "centrality (high = central)"));
    svg.append(make("text", { x: left - 4, y: y(top) + 8, "font-size": 11, "text-anchor": "end", fill: "var(--ink)" }, String(Math.round(top))));
    box.replaceChildren(svg);
  }

  function show() {
    const cell = data.buffers[buffers.value].labels[labels.value];
    for (const kind of ["sampled", "fixed"]) draw(document.getElementById(`histogram-${kind}`), cell && cell[kind]);
    document.getElementById("histogram-note").textContent = cell ? `${cell.n} samples, ${cell.accepted} accepted` : "";
  }

  function choose() {
    const before = labels.value;
    const own = Object.keys(data.buffers[buffers.value].labels);
    labels.replaceChildren(...own.map((code) => option(data.names[code], code)));
    if (own.includes(before)) labels.value = before;
    show();
  }
  buffers.addEventListener("change", choose);
  labels.addEventListener("change", show);
  choose();
})();
