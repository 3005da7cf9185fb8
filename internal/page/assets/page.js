"use strict";
// The page of a run. Server-Sent Events bring the state; curves are fetched when the state has changed. All texts of
// programs are set as textContent, never as HTML.

const token = new URLSearchParams(location.search).get("token") || "";
const $ = (id) => document.getElementById(id);
const refreshEvery = 1000; // ms between two refreshes of the curves
const mostCharts = 60;

// make returns a new element with properties and children.
function make(tag, props, ...children) {
  const e = Object.assign(document.createElement(tag), props);
  e.append(...children);
  return e;
}

// setText changes a text only if it differs, so that screen readers and selections are left alone.
function setText(e, text) { if (e.textContent !== text) e.textContent = text; }

const answers = new Map(); // the last ones, for the time after golaunch has ended

// get asks for a run's curves or lines. extent says which part of them, and how finely.
async function get(path, what, extent = {}) {
  const key = path + JSON.stringify(what);
  try {
    const r = await fetch(path + "?" + new URLSearchParams({...what, ...extent, token}), {cache: "no-store"});
    if (!r.ok) throw new Error(path + ": " + r.status);
    answers.set(key, await r.json());
  } catch (e) {
    if (!answers.has(key)) throw e;
  }
  return answers.get(key);
}

// ---- numbers for people

function short(v, digits = 4) {
  if (v === null || v === undefined) return "–";
  const a = Math.abs(v);
  if (a === 0) return "0";
  if (a >= 1e6 || a < 1e-4) return v.toExponential(2).replace("e+", "e");
  if (a >= 1000) return Math.round(v).toLocaleString("en");
  return String(Number(v.toPrecision(digits)));
}

function bytes(v, digits = 3) {
  if (v === null || v === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; Math.abs(v) >= 1024 && i < units.length - 1; i++) v /= 1024;
  return Number(v.toPrecision(digits)) + " " + units[i];
}

function seconds(v, digits = 3) {
  if (v === null || v === undefined) return "–";
  if (v === 0) return "0 s";
  if (v < 1e-3) return Number((v * 1e6).toPrecision(digits)) + " µs";
  if (v < 1) return Number((v * 1e3).toPrecision(digits)) + " ms";
  if (v < 120) return Number(v.toPrecision(digits)) + " s";
  return duration(v);
}

function duration(s) {
  s = Math.max(0, Math.round(s));
  const d = Math.floor(s / 86400), h = Math.floor(s / 3600) % 24, m = Math.floor(s / 60) % 60;
  if (d) return `${d} d ${h} h`;
  if (h) return `${h} h ${m} min`;
  if (m) return `${m} min ${s % 60} s`;
  return `${s} s`;
}

const isBytes = (name) => /(^|_)bytes$/.test(name);
const isTime = (name) => name === timeOfStep;
const format = (name, v, digits) => (isTime(name) ? seconds : isBytes(name) ? bytes : short)(v, digits);

// ticks formats the numbers of an axis with as many digits as make them differ.
function ticks(name, values) {
  let texts = [];
  for (let digits = 4; digits < 9; digits++) {
    texts = values.map((v) => v === null ? "" : format(name, v, digits));
    if (new Set(texts).size === texts.length) break;
  }
  return texts;
}
const title = (name) => name.replace(/_bytes$/, " memory").replaceAll("_", " ");

// ---- state

let states = [];
let chosen = 0;      // the run whose ranks are shown
let zoom = null;     // [from, to], or null for all steps
let isLost = false;  // the server has ended
let isOld = true;    // the curves lack something that the state has
let isBusy = false;  // the curves are to be fetched, or are being fetched
let drawnAt = -Infinity; // when the curves were drawn, as performance.now() has it
let source = null;

const lastStep = () => Math.max(1, ...states.map((s) => s.step));
const zoomed = () => zoom ? {from: zoom[0], to: zoom[1]} : {};

function connect() {
  source = new EventSource("events?token=" + encodeURIComponent(token));
  source.onmessage = (m) => {
    isLost = false;
    states = JSON.parse(m.data);
    isOld = true;
    showState();
    schedule();
  };
  source.onerror = () => {
    isLost = true;
    showState();
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 3000);
  };
}

const hasEnded = () => states.length > 0 && states.every((s) => s.status !== "running");

function schedule() {
  if (isBusy || !isOld || document.hidden && !hasEnded()) return;
  isBusy = true;
  setTimeout(async () => {
    isOld = false;
    try { await Promise.all([drawCharts(), drawHeat(), drawLines()]); } catch (e) { console.warn(e); }
    drawnAt = performance.now();
    isBusy = false;
    if (hasEnded() && !isOld) source.close(); // golaunch waits for that, so that no page lacks the last points
    schedule();
  }, hasEnded() ? 0 : Math.max(0, refreshEvery - (performance.now() - drawnAt)));
}

// refresh draws the curves anew, at once.
function refresh() { isOld = true; drawnAt = -Infinity; schedule(); }

document.addEventListener("visibilitychange", schedule);

function showState() {
  const s = states[chosen];
  if (!s) { $("status").className = "badge lost"; setText($("status"), "not connected"); return; }
  const names = [...new Set(states.map((r) => r.name))].join(", ");
  setText($("name"), names);
  const lost = isLost && s.status === "running";
  const status = lost ? "not connected" : s.status;
  $("status").className = "badge " + (lost ? "lost" : s.status);
  setText($("status"), status);
  document.title = (s.failure ? "✗ " : s.slow ? "⚠ " : "") + names + " – " + status;

  const running = s.ranks.filter((r) => r.state === "running").length;
  const end = s.ended ? new Date(s.ended) : new Date(s.now);
  const facts = [["step", s.step.toLocaleString("en")], ["time", duration((end - new Date(s.started)) / 1000)]];
  if (s.world_size) facts.push(["workers", `${running} of ${s.world_size}`]);
  if (s.restarts) facts.push(["restarts", String(s.restarts)]);
  if (s.checkpoint) facts.push(["checkpoint", `step ${s.checkpoint.step.toLocaleString("en")}, durable for ${duration((end - new Date(s.checkpoint.time)) / 1000)}`]);
  if (s.dropped) facts.push(["dropped reports", s.dropped.toLocaleString("en")]);
  update($("facts"), facts, () => make("div", {}, make("dt"), make("dd")), (e, [k, v]) => { setText(e.firstChild, k); setText(e.lastChild, v); });

  const alerts = [];
  if (s.failure) alerts.push(["bad", s.culprits.length ? `${s.culprits.length > 1 ? "Ranks" : "Rank"} ${s.culprits.join(", ")} caused the failure.` : "The job failed."]);
  if (s.slow) alerts.push(["", s.slow.text[0].toUpperCase() + s.slow.text.slice(1) + "."]);
  if (s.refused) alerts.push(["", `Too many different numbers: the page has no room for ${s.refused}${s.refused >= 1000 ? " or more" : ""} of them.`]);
  for (const l of s.latest) if (l.value === null) alerts.push(["bad", `${title(l.name)} is not finite at step ${l.step.toLocaleString("en")}.`]);
  // Screen readers are told what has changed, but not each new time of the slowest rank.
  const told = alerts.filter(([, text]) => !s.slow || text.toLowerCase() !== s.slow.text.toLowerCase() + ".").map(([, text]) => text);
  if (s.slow) told.push(`Rank ${s.slow.rank} is the slowest: ${s.slow.part}.`);
  setText($("told"), told.join(" "));
  update($("alerts"), alerts, () => make("div"), (e, [kind, text]) => { e.className = "alert " + kind; setText(e, text); });

  $("failure").hidden = !s.failure;
  setText($("report"), s.failure || "");
  showRanks(s);
  showEvents(s);
  showChoices(s);
}

// update makes the children of a node match a list.
function update(parent, list, create, set) {
  while (parent.children.length > list.length) parent.lastElementChild.remove();
  while (parent.children.length < list.length) parent.append(create());
  list.forEach((item, i) => set(parent.children[i], item, i));
}

const partColors = ["#3f7cc4", "#4fa66a", "#9bd08a", "#c7ccd1", "#a06cc0", "#76b7b2", "#bab0ac", "#edc948", "#9c755f", "#d3b9a2", "#f28e2b", "#ff9da7"];
const color = (s, part) => part === "wait" ? css("--wait") : partColors[Math.max(0, s.parts.indexOf(part)) % partColors.length];

function showRanks(s) {
  let most = 0;
  const times = s.ranks.map((r) => s.parts.reduce((sum, p) => sum + (r.parts[p] || 0), 0));
  for (const t of times) most = Math.max(most, t);
  const hasGPUs = s.ranks.some((r) => r.gpu);
  $("gpus").hidden = !hasGPUs;
  update($("ranks").tBodies[0], s.ranks,
    () => make("tr", {}, make("th", {scope: "row"}), make("td"), make("td", {className: "n"}), make("td", {}, make("div", {className: "stack"})), make("td", {className: "n"}), make("td", {className: "n"}), make("td", {className: "n"}), make("td"), make("td")),
    (row, r, i) => {
      const isSlow = s.slow && s.slow.rank === r.rank, isCulprit = s.culprits.includes(r.rank);
      row.className = isCulprit ? "culprit" : isSlow ? "slow" : "";
      const c = row.cells;
      setText(c[0], String(r.rank));
      setText(c[1], (r.state || "–") + (isCulprit ? " (culprit)" : isSlow ? ` (slow: ${s.slow.part})` : ""));
      setText(c[2], times[i] ? seconds(times[i]) : "–");
      setText(c[4], r.step.toLocaleString("en"));
      setText(c[5], s.status !== "running" || r.silent < 0 ? "–" : r.silent < 2 ? "now" : duration(r.silent) + " ago");
      c[6].hidden = !hasGPUs;
      setText(c[6], r.gpu ? `${short(r.gpu.clock)} MHz, ${short(r.gpu.temperature, 3)} °C, ${short(r.gpu.power, 3)} W` : "–");
      setText(c[7], r.host ? `${r.node} ${r.host}` : "–");
      setText(c[8], r.pid ? String(r.pid) : "–");
      const parts = s.parts.filter((p) => r.parts[p]);
      const bar = c[3].firstChild;
      update(bar, parts, () => make("i"), (e, p) => {
        e.style.background = color(s, p);
        e.style.width = 100 * r.parts[p] / most + "%";
        e.title = `${p} ${seconds(r.parts[p])}`;
      });
      bar.setAttribute("role", "img");
      bar.setAttribute("aria-label", parts.map((p) => `${p} ${seconds(r.parts[p])}`).join(", ") || "no times");
    });
  const visible = s.parts.filter((p) => s.ranks.some((r) => r.parts[p] > most / 1000));
  update($("parts"), visible, () => make("li", {}, make("i"), make("span")), (e, p) => {
    e.firstChild.style.background = color(s, p);
    setText(e.lastChild, p);
  });
}

function showEvents(s) {
  const list = $("events");
  const atEnd = list.scrollTop + list.clientHeight >= list.scrollHeight - 20;
  update(list, s.events, () => make("li", {}, make("time"), make("span")), (e, ev) => {
    setText(e.firstChild, new Date(ev.time).toLocaleTimeString("en-GB"));
    setText(e.lastChild, ev.text);
  });
  if (atEnd) list.scrollTop = list.scrollHeight;
}

// setOptions makes a select offer values, and keeps its choice.
function setOptions(select, values, labels = values) {
  const old = select.value;
  const same = select.options.length === values.length && values.every((v, i) => select.options[i].value === String(v));
  if (same) return;
  select.replaceChildren(...values.map((v, i) => make("option", {value: v, textContent: labels[i]})));
  if (values.map(String).includes(old)) select.value = old;
}

function showChoices(s) {
  $("run-choice").hidden = states.length < 2;
  setOptions($("run"), states.map((_, i) => i), states.map((r, i) => `${i + 1}: ${r.name} ${r.id}`));
  setOptions($("part"), ["work", "step", ...s.parts], ["all work (without waiting)", "whole step", ...s.parts]);
  setOptions($("lines-rank"), s.ranks.map((r) => r.rank));
  $("filter").parentElement.hidden = allNames().length < 13;
  $("reset").hidden = !zoom;
  setText($("zoom"), zoom ? `steps ${zoom[0].toLocaleString("en")} to ${zoom[1].toLocaleString("en")}` : "");
  if (states.length > 1) {
    update($("runs"), states, () => make("span", {}, make("i"), make("span")), (e, r, i) => {
      e.firstChild.style.background = runColor(i);
      setText(e.lastChild, `${i + 1}: ${r.name} ${r.id}`);
    });
  }
}

// ---- curves

const timeOfStep = "time of a step"; // a curve that the page itself adds
const firstNames = ["loss", "validation_loss", "eval_loss", "accuracy", "lr", "grad_norm", "samples_per_second", "tokens_per_second", "mfu", timeOfStep];
function allNames() {
  const names = [...new Set(states.flatMap((s) => s.parts.length ? [...s.names, timeOfStep] : s.names))];
  const last = firstNames.length;
  const place = (n) => firstNames.includes(n) ? firstNames.indexOf(n) : isBytes(n) || n === "goroutines" ? last + 1 : /^(gpu|cpu|tcp)_/.test(n) ? last + 2 : last;
  return names.sort((a, b) => place(a) - place(b) || (a < b ? -1 : a > b ? 1 : 0));
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;
const runColors = () => isDark() ? ["#6cb2ff", "#ffb454", "#7ee2a0", "#ff8fa0", "#d2a8ff", "#76d7d7"] : ["#0b63c4", "#b75c00", "#177a3a", "#c2185b", "#7438c9", "#00798a"];
const runColor = (i) => runColors()[i % 6];

const charts = new Map(); // by name
const plotHeight = 190;

function makeChart(name) {
  const plot = make("div", {className: "plot", tabIndex: 0});
  plot.setAttribute("role", "img");
  plot.addEventListener("keydown", onKey);
  const latest = make("span", {className: "latest"});
  const figure = make("figure", {className: "chart"}, make("figcaption", {}, make("span", {textContent: title(name), title: name}), latest), plot);
  return {name, figure, plot, latest, u: null, data: null, shape: ""};
}

const powers = Array.from({length: 51}, (_, i) => 2 ** i); // the steps of an axis of bytes
const pen = document.createElement("canvas").getContext("2d");

// axisWidth returns the width of a vertical axis: that of its longest text, its ticks and gaps.
function axisWidth(font, texts) {
  pen.font = font;
  return Math.max(48, 14 + Math.ceil(Math.max(0, ...texts.map((t) => pen.measureText(t).width))));
}

function build(c, runs) {
  if (c.u) c.u.destroy();
  const axis = {stroke: css("--soft"), grid: {stroke: css("--grid"), width: 1}, ticks: {stroke: css("--grid"), width: 1, size: 4}, font: "11px system-ui, sans-serif"};
  const series = [{}], bands = [];
  for (let r = 0; r < runs; r++) {
    const col = runColor(r);
    series.push({stroke: col + "55", width: 1, points: {show: false}, spanGaps: true}, {stroke: col + "55", width: 1, points: {show: false}, spanGaps: true});
    series.push({stroke: col, width: 1.6, spanGaps: true, points: {show: (u, i) => count(u.data[i]) < 40, size: 4, fill: col}});
    bands.push({series: [3 * r + 1, 3 * r + 2], fill: col + "2e"});
  }
  const tip = make("div", {className: "tip", hidden: true});
  c.u = new uPlot({
    width: c.plot.clientWidth || 320, height: plotHeight, series, bands,
    scales: {x: {time: false}, y: {distr: $("log").checked ? 3 : 1}},
    axes: [
      {...axis, size: 28, space: 60, values: (u, v) => v.map((x) => Number.isInteger(x) ? (Math.abs(x) >= 1e5 ? x / 1000 + "k" : x.toLocaleString("en")) : "")},
      {...axis, size: (u, texts) => axisWidth(axis.font, texts || []), values: (u, v) => ticks(c.name, v), ...(isBytes(c.name) ? {incrs: powers} : {})},
    ],
    cursor: {sync: {key: "steps", setSeries: false}, drag: {x: true, y: false, setScale: false}, y: false},
    legend: {show: false},
    hooks: {
      setSelect: [(u) => {
        if (u.select.width > 4) {
          const a = Math.round(u.posToVal(u.select.left, "x")), b = Math.round(u.posToVal(u.select.left + u.select.width, "x"));
          u.setSelect({left: 0, top: 0, width: 0, height: 0}, false);
          if (b > a) setZoom([Math.max(0, a), b]);
        }
      }],
      setCursor: [(u) => {
        const i = u.cursor.idx, at = u.data[0];
        if (i === null || i === undefined || !at.length) { tip.hidden = true; return; }
        const texts = [];
        for (let r = 0; r < runs; r++) {
          const j = nearest(u.data[3 * r + 3], i);
          if (j < 0) continue;
          const [lo, hi, mean] = [1, 2, 3].map((k) => u.data[3 * r + k][j]);
          texts.push((runs > 1 ? `${r + 1}: ` : "") + format(c.name, mean) + (hi - lo > 1e-6 * Math.abs(mean) ? ` (${format(c.name, lo)} to ${format(c.name, hi)})` : ""));
        }
        tip.hidden = !texts.length;
        tip.textContent = `step ${at[i].toLocaleString("en")}: ${texts.join("; ")}`;
        const x = u.cursor.left, width = u.over.clientWidth;
        tip.style.left = Math.max(0, Math.min(x + 10, width - tip.offsetWidth)) + "px";
        tip.style.top = "2px";
      }],
    },
  }, c.data, c.plot);
  c.u.over.append(tip);
  c.u.over.addEventListener("dblclick", () => setZoom(null));
}

const count = (a) => { let n = 0; for (const v of a) if (v !== null) n++; return n; };

// nearest returns the index of the value next to index i that is not null, or -1.
function nearest(a, i) {
  for (let d = 0; d < a.length; d++) {
    if (a[i - d] !== null && a[i - d] !== undefined) return i - d;
    if (a[i + d] !== null && a[i + d] !== undefined) return i + d;
  }
  return -1;
}

// table returns the columns of a curve.
const table = (c) => c.ranks.length ? [c.steps, c.ranks[0].min, c.ranks[0].max, c.ranks[0].mean] : [[], [], [], []];

async function drawCharts() {
  const filter = $("filter").value.toLowerCase();
  const all = allNames(), box = $("charts");
  if (!all.length) return;
  const names = all.filter((n) => n.toLowerCase().includes(filter) || title(n).includes(filter)).slice(0, mostCharts);
  for (const n of names) if (!charts.has(n)) charts.set(n, makeChart(n));
  const figures = names.map((n) => charts.get(n).figure);
  if (figures.length !== box.children.length || figures.some((f, i) => box.children[i] !== f)) box.replaceChildren(...figures);
  await Promise.all(names.map(async (name) => {
    const c = charts.get(name);
    const bins = Math.max(100, Math.round(c.plot.clientWidth || 320));
    const all = await Promise.all(states.map((_, run) => get("curves", {run, ...(isTime(name) ? {kind: "times", name: "step"} : {name})}, {bins, ...zoomed()})));
    const tables = all.map(table);
    c.data = tables.length === 1 ? tables[0] : uPlot.join(tables);
    const shape = tables.length + ($("log").checked ? "log" : "");
    if (!c.u || c.shape !== shape) { c.shape = shape; build(c, tables.length); } else c.u.setData(c.data, false);
    const x = c.data[0];
    const [min, max] = zoom || [0, lastStep()];
    c.u.batch(() => { c.u.setScale("x", {min, max}); scaleY(c, tables.length); });
    let isBad = false;
    const latest = states.map((s, run) => { // of each run, in the order of the legend
      if (isTime(name)) return format(name, c.data[3 * run + 3].findLast(isPoint));
      const l = s.latest.find((l) => l.name === name);
      if (l?.value !== null) return format(name, l?.value);
      isBad = true;
      return "not finite";
    }).join(" · ");
    setText(c.latest, latest);
    c.latest.className = isBad ? "latest bad" : "latest";
    const lo = Math.min(...states.flatMap((_, run) => c.data[3 * run + 1].filter(isPoint)));
    const hi = Math.max(...states.flatMap((_, run) => c.data[3 * run + 2].filter(isPoint)));
    const text = !(lo <= hi) ? `${title(name)}: no points` : `${title(name)}: ${latest} now, ${format(name, lo)} to ${format(name, hi)} between steps ${x[0]} and ${x[x.length - 1]}. Plus and minus zoom, arrows move, 0 shows all steps.`;
    if (c.plot.getAttribute("aria-label") !== text) c.plot.setAttribute("aria-label", text);
  }));
}

// isPoint reports whether v is a value of a curve: uPlot.join leaves others of shorter runs undefined.
const isPoint = (v) => v !== null && v !== undefined;

// scaleY fits the vertical axis to what is shown.
function scaleY(c, runs) {
  let lo = Infinity, hi = -Infinity;
  for (let r = 0; r < runs; r++) {
    for (const v of c.data[3 * r + 1]) if (v !== null && (v > 0 || !$("log").checked)) lo = Math.min(lo, v);
    for (const v of c.data[3 * r + 2]) if (v !== null) hi = Math.max(hi, v);
  }
  if (!(lo <= hi)) return;
  if ($("log").checked) { c.u.setScale("y", {min: lo / 1.1, max: hi * 1.1}); return; }
  const least = Math.max(Math.abs(lo), Math.abs(hi)) * (lo === hi || isBytes(c.name) ? 0.1 : 0.02) || 1; // noise must not fill the panel
  const pad = Math.max((hi - lo) * 0.06, (least - (hi - lo)) / 2);
  c.u.setScale("y", {min: lo >= 0 ? Math.max(0, lo - pad) : lo - pad, max: hi + pad});
}

function setZoom(z) {
  zoom = z;
  showState();
  refresh();
}

function onKey(e) {
  const last = lastStep();
  const [a, b] = zoom || [0, last];
  const w = b - a, mid = (a + b) / 2;
  const to = (from, until) => setZoom([Math.max(0, Math.round(from)), Math.min(last, Math.round(until))]);
  switch (e.key) {
    case "+": case "=": if (w > 4) to(mid - w / 4, mid + w / 4); break;
    case "-": if (2 * w >= last) setZoom(null); else to(mid - w, mid + w); break;
    case "ArrowLeft": if (a > 0) to(Math.max(0, a - w / 4), Math.max(0, a - w / 4) + w); break;
    case "ArrowRight": if (b < last) to(Math.min(last, b + w / 4) - w, b + w / 4); break;
    case "0": case "Escape": setZoom(null); break;
    default: return;
  }
  e.preventDefault();
}

new ResizeObserver(() => {
  for (const c of charts.values()) if (c.u && c.plot.clientWidth) c.u.setSize({width: c.plot.clientWidth, height: plotHeight});
  refresh();
}).observe($("charts"));

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const c of charts.values()) c.shape = "";
  refresh();
});

// ---- heat map

let heat = null; // the curves of the part, and the size of a cell
const labelWidth = 34; // px left of the cells

// heatColor maps 0 to 1 to a scale that also people see who do not tell red from green.
function heatColor(t) {
  const stops = isDark() ? [[24, 34, 50], [70, 54, 92], [150, 66, 84], [228, 124, 58], [255, 222, 122]] : [[236, 242, 248], [253, 228, 165], [247, 170, 66], [224, 92, 34], [165, 15, 21]];
  const x = Math.max(0, Math.min(1, t)) * (stops.length - 1), i = Math.min(stops.length - 2, Math.floor(x)), f = x - i;
  return `rgb(${stops[i].map((v, k) => Math.round(v + (stops[i + 1][k] - v) * f)).join(",")})`;
}

const aboutParts = {
  work: "The longest time in each interval of everything but waiting for other ranks, logging, evaluations and checkpoints. The row that stands out is the rank that the others wait for.",
  step: "The longest whole step in each interval. Ranks that wait for each other take equally long.",
  wait: "The longest wait for reductions in each interval, on a GPU also for its kernels. The rank that waits least is the slowest.",
};

async function drawHeat() {
  const part = $("part").value, canvas = $("heat"), width = canvas.parentElement.clientWidth;
  setText($("part-about"), aboutParts[part] || `The longest time of ${part} in each interval.`);
  if (states[chosen]) heat = await get("curves", {run: chosen, each: 1, kind: "times", name: part}, {bins: Math.max(20, Math.floor((width - labelWidth) / 5)), ...zoomed()});
  const n = heat ? heat.ranks.length : 0;
  const row = n > 64 ? 4 : n > 16 ? 9 : 18, height = Math.max(1, n) * row + 18;
  const ratio = devicePixelRatio || 1;
  canvas.width = width * ratio; canvas.height = height * ratio; canvas.style.height = height + "px";
  const g = canvas.getContext("2d");
  g.scale(ratio, ratio);
  g.font = "11px system-ui, sans-serif";
  if (!n || !heat.steps.length) { canvas.setAttribute("aria-label", "No times yet"); g.fillStyle = css("--soft"); g.fillText("no times yet", 4, 12); return; }
  const values = heat.ranks.flatMap((r) => r.max).filter((v) => v !== null).sort((a, b) => a - b);
  // Rare outliers, such as the first step, must not make all others look alike.
  const lo = values[0], typical = values[Math.floor(values.length * 0.98)];
  const hi = Math.min(values[values.length - 1], 2 * typical);
  const shade = (v) => hi > lo ? Math.sqrt((v - lo) / (hi - lo)) : 0;
  const cell = (width - labelWidth) / heat.steps.length;
  heat.row = row; heat.cell = cell;
  heat.ranks.forEach((r, y) => {
    let before = null; // the steps of a record are in its last bin
    const end = r.max.findLastIndex((v) => v !== null);
    r.max.forEach((v, x) => {
      v = v ?? (x < end ? before : null);
      before = v;
      if (v === null) return;
      g.fillStyle = heatColor(shade(v));
      g.fillRect(labelWidth + x * cell, y * row, Math.ceil(cell), row - (row > 6 ? 1 : 0));
    });
    if (y % Math.ceil(12 / row) === 0) {
      g.fillStyle = css("--soft");
      g.textAlign = "right"; g.textBaseline = "middle";
      g.fillText(r.rank, labelWidth - 6, y * row + row / 2);
    }
  });
  g.fillStyle = css("--soft"); g.textBaseline = "alphabetic";
  g.textAlign = "left"; g.fillText("step " + heat.steps[0].toLocaleString("en"), labelWidth, height - 4);
  g.textAlign = "right"; g.fillText(heat.steps[heat.steps.length - 1].toLocaleString("en"), width, height - 4);
  const s = $("scale").getContext("2d");
  for (let x = 0; x < 160; x++) { s.fillStyle = heatColor(x / 159); s.fillRect(x, 0, 1, 10); }
  setText($("scale-least"), seconds(lo)); setText($("scale-most"), (hi < values[values.length - 1] ? "≥ " : "") + seconds(hi));
  const top = heat.ranks.reduce((best, r) => Math.max(...r.max) > Math.max(...best.max) ? r : best);
  canvas.setAttribute("aria-label", `Heat map of ${n} ranks over steps ${heat.steps[0]} to ${heat.steps[heat.steps.length - 1]}: ${part} takes ${seconds(lo)} to ${seconds(values[values.length - 1])}, the longest on rank ${top.rank}. The table below has the last steps.`);
}

$("heat").addEventListener("mousemove", (e) => {
  const tip = $("heat-tip");
  if (!heat || !heat.cell) return;
  const box = $("heat").getBoundingClientRect();
  const x = Math.floor((e.clientX - box.left - labelWidth) / heat.cell), y = Math.floor((e.clientY - box.top) / heat.row);
  const r = heat.ranks[y];
  if (!r || x < 0 || x >= heat.steps.length || r.max[x] === null) { tip.hidden = true; return; }
  tip.hidden = false;
  tip.textContent = `rank ${r.rank}, step ${heat.steps[x].toLocaleString("en")}: longest ${seconds(r.max[x])}, mean ${seconds(r.mean[x])}`;
  tip.style.left = Math.max(0, Math.min(e.clientX - box.left + 10, box.width - tip.offsetWidth)) + "px";
  tip.style.top = e.clientY - box.top + 14 + "px";
});
$("heat").addEventListener("mouseleave", () => { $("heat-tip").hidden = true; });
$("heat").addEventListener("keydown", onKey);

// ---- output

async function drawLines() {
  const rank = $("lines-rank").value, box = $("lines");
  if (rank === "") return;
  const lines = await get("lines", {run: chosen, rank});
  const atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 20;
  update(box, lines || [], () => make("div"), (e, l) => { e.className = l.err ? "err" : ""; setText(e, l.text); });
  if (atEnd) box.scrollTop = box.scrollHeight;
}

$("run").addEventListener("change", () => { chosen = Number($("run").value); showState(); refresh(); });
for (const id of ["part", "lines-rank", "log"]) $(id).addEventListener("change", () => refresh());
$("filter").addEventListener("input", () => refresh());
$("reset").addEventListener("click", () => setZoom(null));
connect();
