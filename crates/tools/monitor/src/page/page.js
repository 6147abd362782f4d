"use strict";
// The page of `raas web`. All text of a daemon goes in as text nodes and attributes, never as markup.
const PERIOD_MS = 1000, POINTS = 120, HOSTS_MAX = 24;
const token = location.hash.slice(1);
const history = [];
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function svg(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function units(value, names, step) {
  let i = 0;
  while (value >= step && i + 1 < names.length) { value /= step; i += 1; }
  return (value < 10 && value % 1 !== 0 ? value.toFixed(1) : Math.round(value).toString()) + " " + names[i];
}
const bytes = (n) => units(n, ["B", "kB", "MB", "GB", "TB", "PB"], 1000);
const rate = (n) => bytes(n) + "/s";
const time = (ns) => units(ns / 1000, ["us", "ms", "s"], 1000);
const count = (n) => n.toLocaleString("en");

function line(points, highest, className) {
  const step = 100 / (POINTS - 1), from = POINTS - points.length;
  const at = points.map((y, i) => ((from + i) * step).toFixed(2) + "," + (48 - 46 * y / highest).toFixed(2));
  return svg("polyline", { points: at.join(" "), class: className });
}

function plot(id, series, what) {
  const target = byId(id);
  const highest = Math.max(1e-9, ...series.flatMap((s) => s.points));
  target.setAttribute("viewBox", "0 0 100 50");
  target.setAttribute("preserveAspectRatio", "none");
  target.setAttribute("aria-label", what);
  target.replaceChildren(...series.map((s) => line(s.points, highest, s.className)));
}

// The stage that takes longest of those that have samples, else the daemon's answers to this page.
function latencyOf(state) {
  const stages = (state.stages || []).filter((s) => s.p99_ns > 0);
  if (stages.length === 0) return { name: "of the daemon's answers", p50: state.answer_us * 1000, p99: state.answer_us * 1000 };
  const slow = stages.reduce((a, b) => (b.p99_ns > a.p99_ns ? b : a));
  return { name: "of messages, p50 and p99", p50: slow.p50_ns, p99: slow.p99_ns, stages };
}

function plots(state) {
  history.push(state);
  if (history.length > POINTS) history.shift();
  const of = (value) => history.map(value);
  const both = rate(state.tx_bytes_per_s) + " out, " + rate(state.rx_bytes_per_s) + " in";
  byId("v-throughput").textContent = both;
  plot("p-throughput", [
    { points: of((s) => s.tx_bytes_per_s), className: "a" },
    { points: of((s) => s.rx_bytes_per_s), className: "b" },
  ], "throughput: " + both);
  const latency = latencyOf(state);
  byId("c-latency").firstChild.textContent = "Latency " + latency.name + " ";
  byId("v-latency").textContent = latency.stages ? time(latency.p50) + ", " + time(latency.p99) : time(latency.p50);
  plot("p-latency", [
    { points: of((s) => latencyOf(s).p50), className: "a" },
    { points: of((s) => latencyOf(s).p99), className: "b" },
  ], "latency: " + time(latency.p50));
  byId("k-latency").textContent = (latency.stages || [])
    .map((s) => s.name + " " + time(s.p50_ns) + ", " + time(s.p99_ns)).join("; ");
  byId("v-drops").textContent = state.all_users ? state.drops_per_s.toFixed(1) + "/s" : "root and the daemon's user see them";
  plot("p-drops", [{ points: of((s) => s.drops_per_s), className: "a" }], "drops: " + state.drops_per_s.toFixed(1) + " per second");
  const reasons = Object.entries(state.drops).filter(([, n]) => n > 0).map(([reason, n]) => count(n) + " " + reason);
  byId("k-drops").textContent = reasons.length ? "since the start: " + reasons.join(", ") : "none since the start";
}

const laneClass = (lane) => (lane.state === "up" ? "lane" : lane.state === "resting" ? "lane rest" : "lane bad");

function box(x, y, width, height, title, words) {
  return [
    svg("rect", { x, y, width, height, rx: 5, class: "host" }),
    svg("text", { x: x + 10, y: y + 16 }, title),
    svg("text", { x: x + 10, y: y + 31, class: "soft" }, words),
  ];
}

// One unit of the picture is one pixel, so that its text is as large as all other text. Where it is narrow the lanes
// stand below this host.
function picture(state) {
  const lanes = state.lanes.slice(0, HOSTS_MAX);
  const target = byId("picture");
  const width = Math.max(280, Math.min(1100, target.clientWidth || 640)), isNarrow = width < 620;
  const row = isNarrow ? 62 : 48, high = isNarrow ? 52 : 38, ownWidth = isNarrow ? width - 20 : 190;
  const top = isNarrow ? 66 : 12, height = Math.max(isNarrow ? 66 : 74, lanes.length * row + top + 6);
  const ownY = isNarrow ? 10 : height / 2 - 19, left = isNarrow ? 40 : width / 2, laneWidth = width - left - 10;
  target.setAttribute("viewBox", "0 0 " + width + " " + height);
  target.setAttribute("height", height);
  const parts = [];
  const fastest = Math.max(1, ...lanes.map((l) => l.tx_bytes_per_s + l.rx_bytes_per_s));
  lanes.forEach((lane, i) => {
    const y = top + i * row, middle = y + high / 2, from = ownY + 19;
    const flow = lane.tx_bytes_per_s + lane.rx_bytes_per_s;
    const bend = (200 + left) / 2;
    const way = isNarrow ? "M 24 48 V " + middle + " H " + left : "M 200 " + from + " C " + bend + " " + from + " " + bend + " " + middle + " " + left + " " + middle;
    parts.push(svg("path", { d: way, fill: "none", class: laneClass(lane), "stroke-width": (1.5 + 5 * flow / fastest).toFixed(1) }));
    const rates = rate(lane.tx_bytes_per_s) + " out, " + rate(lane.rx_bytes_per_s) + " in";
    const words = (lane.wire || "no wire") + ", " + count(lane.connections) + " connections";
    parts.push(...box(left, y, laneWidth, high, lane.name + "  " + lane.state, isNarrow ? words : words + ", " + rates));
    if (isNarrow) parts.push(svg("text", { x: left + 10, y: y + 45, class: "soft" }, rates));
  });
  parts.push(...box(10, ownY, ownWidth, 38, "this host", state.device + ", " + count(state.apps_total) + " applications"));
  target.replaceChildren(...parts);
  const more = state.lanes_total - lanes.length;
  byId("more-lanes").textContent = more > 0 ? "and " + count(more) + " more lanes" : lanes.length ? "" : "no lanes: nothing was sent to another host yet";
}

function table(id, columns, rows) {
  const target = byId(id);
  const head = document.createElement("tr");
  for (const [name, , kind] of columns) {
    const cell = document.createElement("th");
    cell.textContent = name;
    cell.scope = "col";
    if (kind) cell.className = kind;
    head.append(cell);
  }
  target.tHead.replaceChildren(head);
  const lines = rows.map((row) => {
    const tr = document.createElement("tr");
    for (const [name, value, kind] of columns) {
      const cell = document.createElement("td");
      cell.dataset.name = name;
      cell.textContent = value(row);
      if (kind) cell.className = kind;
      tr.append(cell);
    }
    return tr;
  });
  target.tBodies[0].replaceChildren(...lines);
}

function tables(state) {
  table("connections", [
    ["id", (c) => c.id, "n"],
    ["local", (c) => c.local],
    ["peer", (c) => c.peer],
    ["state", (c) => c.state],
    ["path", (c) => c.path + (c.wire ? " (" + c.wire + ")" : "")],
    ["why", (c) => c.reason],
    ["out", (c) => rate(c.tx_bytes_per_s), "n"],
    ["in", (c) => rate(c.rx_bytes_per_s), "n"],
    ["queued", (c) => bytes(c.queued_bytes), "n"],
    ["process", (c) => c.app_pid, "n"],
  ], state.connections);
  const more = state.connections_total - state.connections.length;
  byId("more-connections").textContent = more > 0 ? "the busiest " + count(state.connections.length) + " of " + count(state.connections_total) : state.connections.length ? "" : "none";
  table("apps", [
    ["process", (a) => a.pid, "n"],
    ["user", (a) => a.uid, "n"],
    ["name", (a) => a.name],
    ["connections", (a) => count(a.connections), "n"],
    ["out", (a) => rate(a.tx_bytes_per_s), "n"],
    ["in", (a) => rate(a.rx_bytes_per_s), "n"],
    ["registered", (a) => bytes(a.pinned_bytes), "n"],
  ], state.apps);
}

function say(text, isBad) {
  byId("summary").textContent = text;
  byId("summary").className = isBad ? "bad" : "";
}

async function turn() {
  try {
    const answer = await fetch("api/state", { headers: { authorization: "Bearer " + token } });
    if (answer.status === 401) throw new Error(await answer.text());
    const state = await answer.json();
    if (state.error) throw new Error(state.error);
    const users = state.all_users ? "" : "; what your own programs do";
    say(state.device + ": " + state.device_reason + "; up " + count(state.uptime_seconds) + " s; " + count(state.connections_total) + " connections" + users, false);
    plots(state);
    picture(state);
    tables(state);
  } catch (error) {
    say("no answer: " + error.message, true);
  }
  setTimeout(turn, PERIOD_MS);
}

turn();
