"use strict";
// What the daemon tells (web/src/picture.rs), and what of it is on the screen. Told texts go into the page as text, never as markup.

const EVENTS = 2000, ROWS = 200, LINES = 40;
const known = { head: {}, nodes: new Map(), jobs: new Map(), ranks: new Map(), traffic: new Map(), events: [] };
let number = 0, selected = null, pickedNode = null, drawn = false;
const at = id => document.getElementById(id);
const color = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

// ---- what is told

function take(told) {
  if (told.full) { known.nodes.clear(); known.jobs.clear(); known.ranks.clear(); known.traffic.clear(); }
  else if (told.n !== number + 1) return reconnect();
  number = told.n;
  if (told.anew) known.events = [];
  if (told.head) known.head = Object.assign({}, known.head, told.head);
  merge(known.nodes, told.nodes); merge(known.jobs, told.jobs); merge(known.traffic, told.traffic);
  for (const [job, rows] of Object.entries(told.ranks || {})) {
    if (!known.ranks.has(job)) known.ranks.set(job, new Map());
    merge(known.ranks.get(job), rows);
  }
  for (const job of known.ranks.keys()) if (!known.jobs.has(job)) known.ranks.delete(job);
  for (const event of told.events || []) known.events.push(event);
  if (known.events.length > EVENTS) known.events.splice(0, known.events.length - EVENTS);
  if (told.events || told.anew) eventsChanged = true;
  ask();
}

function merge(rows, told) {
  for (const [key, row] of Object.entries(told || {})) { if (row === null) rows.delete(key); else rows.set(key, row); }
}

let source = null, eventsChanged = true;
function reconnect() {
  if (source) source.close();
  // From the origin: an address with a password in it is refused here.
  source = new EventSource(new URL("/feed", location.origin));
  source.onmessage = message => take(JSON.parse(message.data));
  source.onerror = () => { known.head.trouble = "the connection to radicd is lost; trying again"; ask(); };
  source.onopen = () => { known.head.trouble = null; ask(); };
}

// At most one drawing for each picture of the screen, and none of a page that nobody sees.
function ask() { if (!drawn) { drawn = true; requestAnimationFrame(() => { drawn = false; draw(); }); } }

// ---- words for numbers

function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["", "K", "M", "G", "T", "P"]; let unit = 0;
  while (bytes >= 999.5 && unit < 5) { bytes /= 1024; unit++; }
  return (bytes < 9.95 && unit ? bytes.toFixed(1) : bytes.toFixed(0)) + units[unit];
}
function time(ms) {
  if (ms === null || ms === undefined) return "–";
  const s = Math.max(0, ms) / 1000;
  if (s < 1) return Math.round(ms) + " ms";
  if (s < 100) return s.toFixed(s < 10 ? 1 : 0) + " s";
  if (s < 6000) return Math.floor(s / 60) + "m" + String(Math.floor(s % 60)).padStart(2, "0") + "s";
  return Math.floor(s / 3600) + "h" + String(Math.floor(s / 60) % 60).padStart(2, "0") + "m";
}
const percent = part => part === null || part === undefined ? "–" : part + " %";
const since = ms => ms === null || ms === undefined ? "–" : time(Date.now() - ms);
const clock = ms => new Date(ms).toLocaleTimeString([], { hour12: false });

// ---- tables: cells are changed where their text has changed

function fill(body, rows) {
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((row, i) => {
    const tr = body.rows[i] || body.insertRow();
    if (tr.dataset.key !== row.key) tr.dataset.key = row.key;
    const mark = row.selected ? "true" : "false";
    if (tr.getAttribute("aria-selected") !== mark) tr.setAttribute("aria-selected", mark);
    row.cells.forEach((cell, j) => {
      const td = tr.cells[j] || tr.insertCell();
      const [text, look] = Array.isArray(cell) ? cell : [cell, ""];
      if (td.textContent !== text) td.textContent = text;
      if (td.className !== look) td.className = look;
    });
  });
}
const n = text => [text, "n"];

function draw() {
  if (document.hidden) return;
  drawHead(); drawJobs(); drawRanks(); drawRing(); drawLine(); drawMatrix();
  if (eventsChanged) { eventsChanged = false; drawEvents(); }
}

function drawHead() {
  const members = [...known.nodes.values()], alive = members.filter(node => node.state === "alive").length;
  const running = [...known.jobs.values()].filter(job => job.over === null).length;
  at("head").textContent = known.head.by === undefined ? "asking the cluster"
    : `view ${known.head.view} as ${known.head.by} sees it · ${alive} of ${members.length} nodes alive · ${running} job${running === 1 ? "" : "s"} running`;
  const trouble = known.head.trouble || (known.head.frozen ? "FROZEN: this side of the cluster has no majority, and decides nothing" : "");
  at("trouble").hidden = !trouble; at("trouble").textContent = trouble;
}

function jobsInOrder() {
  return [...known.jobs].sort(([, a], [, b]) => (a.over !== null) - (b.over !== null) || b.started - a.started);
}

function drawJobs() {
  const jobs = jobsInOrder();
  if (!known.jobs.has(selected)) selected = jobs.length ? jobs[0][0] : null;
  fill(at("jobs").tBodies[0], jobs.slice(0, ROWS).map(([id, job]) => {
    const over = job.over !== null;
    const state = [job.degraded && !over ? `degraded: ${job.degraded}` : job.state, over ? "h2" : job.degraded ? "h1" : ""];
    return { key: id, selected: id === selected, cells: [id, state, n(over || job.running === job.ranks ? `${job.ranks}` : `${job.running}/${job.ranks}`),
      n(over ? time(job.over) : since(job.started)), n(size(job.in)), n(size(job.out)), n(over ? "–" : since(job.committed)), n(percent(job.overhead)), job.command] };
  }));
  at("jobs-about").textContent = jobs.length ? (jobs.length > ROWS ? `and ${jobs.length - ROWS} more` : "") : "no job";
}

function drawRanks() {
  const rows = known.ranks.get(selected) || new Map(), wanted = at("filter").value.toLowerCase();
  let shown = [...rows].map(([rank, row]) => [Number(rank), row]);
  if (wanted) shown = shown.filter(([rank, row]) => String(rank) === wanted || row[0].toLowerCase().includes(wanted) || row[1].includes(wanted));
  // What needs attention first.
  shown.sort(([a, x], [b, y]) => (y[2] === 1) - (x[2] === 1) || a - b);
  fill(at("ranks").tBodies[0], shown.slice(0, ROWS).map(([rank, row]) => ({ key: `${rank}`, cells: [n(`${rank}`), row[0], [row[1], row[2] ? "h" + row[2] : ""],
    n(size(row[3])), n(size(row[4])), n(size(row[5])), n(size(row[6])), n(size(row[7])), n(since(row[8])), n(percent(row[9]))] })));
  at("ranks-about").textContent = shown.length > ROWS ? `${ROWS} of ${shown.length} ranks; type to find others` : rows.size ? "" : "no protected rank";
}

function drawEvents() {
  const list = at("events"), bad = new Set(["confirm", "lost", "death", "frozen", "restart", "checkpoint-failed", "refused"]);
  list.replaceChildren(...known.events.slice(-100).reverse().map(([ms, node, name, subject, job, rank, text]) => {
    const item = document.createElement("li");
    const part = (tag, look, said) => { const e = document.createElement(tag); e.className = look; e.textContent = said; item.append(e); };
    part("time", "", clock(ms)); part("span", bad.has(name) ? "bad" : "", name); part("span", "node", subject || node); part("span", "said", text);
    return item;
  }));
}

// ---- pictures

function canvas(id) {
  const element = at(id), scale = window.devicePixelRatio || 1, width = element.clientWidth, height = element.clientHeight;
  if (element.width !== Math.round(width * scale) || element.height !== Math.round(height * scale)) {
    element.width = Math.round(width * scale); element.height = Math.round(height * scale);
  }
  const pen = element.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0); pen.clearRect(0, 0, width, height); pen.font = "12px system-ui, sans-serif";
  return { pen, width, height };
}

let ringSpots = [];
function drawRing() {
  const { pen, width, height } = canvas("ring"), nodes = [...known.nodes].sort(([, a], [, b]) => a.at - b.at);
  const there = node => node.state === "alive" || node.state === "silent";
  const ring = nodes.filter(([, node]) => node.role === "node" && there(node)), others = nodes.filter(([, node]) => !(node.role === "node" && there(node)));
  const radius = Math.min(width, height) / 2 - 42, x0 = width / 2, y0 = height / 2;
  ringSpots = [];
  pen.strokeStyle = color("edge"); pen.lineWidth = 2; pen.beginPath(); pen.arc(x0, y0, Math.max(radius, 1), 0, 7); pen.stroke();
  const spot = Math.max(2, Math.min(14, Math.PI * radius / Math.max(ring.length, 1) - 1));
  const place = ([name, node], x, y, r, label) => {
    pen.fillStyle = node.state === "alive" ? (node.role === "node" ? color("good") : color("mark")) : node.state === "silent" ? color("warn") : color("gone");
    pen.beginPath(); pen.arc(x, y, r, 0, 7); pen.fill();
    // How full it is: ranks for each slot.
    if (node.ranks && r > 6) { pen.fillStyle = color("part"); pen.beginPath(); pen.arc(x, y, r * (1 - Math.min(1, node.ranks / Math.max(node.slots, 1))) * .9, 0, 7); pen.fill(); }
    if (name === pickedNode) { pen.strokeStyle = color("ink"); pen.beginPath(); pen.arc(x, y, r + 3, 0, 7); pen.stroke(); }
    if (label) { pen.fillStyle = color("ink"); pen.textAlign = "center"; pen.fillText(name, x, y + (y < y0 ? -r - 5 : r + 14)); }
    ringSpots.push([name, x, y, r]);
  };
  ring.forEach((entry, i) => {
    const turn = 2 * Math.PI * i / ring.length - Math.PI / 2;
    place(entry, x0 + radius * Math.cos(turn), y0 + radius * Math.sin(turn), spot, ring.length <= 40);
  });
  const columns = Math.max(1, Math.floor(1.4 * radius / 44));
  const few = others.length <= 9, gap = few ? 44 : Math.max(8, radius * 1.1 / Math.sqrt(others.length)), wide = few ? columns : Math.ceil(Math.sqrt(others.length));
  const tall = Math.ceil(others.length / wide);
  others.slice(0, 1000).forEach((entry, i) => place(entry, x0 + (i % wide - (Math.min(wide, others.length) - 1) / 2) * gap, y0 + (Math.floor(i / wide) - (tall - 1) / 2) * (few ? 34 : gap), few ? 7 : gap / 3, few));
  if (!others.length && ring.length) { pen.fillStyle = color("soft"); pen.textAlign = "center"; pen.fillText("no spare", x0, y0); }
  const node = known.nodes.get(pickedNode);
  if (node) at("ring-about").textContent = `${pickedNode}: ${node.role}, ${node.state}; ${node.ranks} ranks in ${node.slots} slots; radicd ${size(node.memory)}, holds ${size(node.store)}; protected by ${node.protector || "none"}; ${node.address}`;
}

const STEPS = ["confirm", "suspect", "lost", "death", "fence", "place", "image", "replay", "live", "re-protected"];
const NAMES = { confirm: "detected", suspect: "detected", lost: "detected", death: "detected", fence: "fenced", place: "placed", image: "restoring", replay: "catching up", live: "live, unprotected" };
const hue = step => ({ detected: "#c0392b", fenced: "#d35400", placed: "#b7950b", restoring: "#7d3c98", "catching up": "#2471a3", "live, unprotected": "#148f77" })[step];

// From events to bars: of each rank that was lost, from one step to the next.
function recoveries(events) {
  const open = new Map(), bars = [], deaths = [], checkpoints = [];
  for (const [ms, node, name, subject, job, rank, text] of events) {
    if (name === "confirm" && rank === null) died(deaths, ms, subject || node);
    // The node that has found it may be dead, too, and its events with it: every other one tells of the view.
    const gone = name === "view" && /gone: (.+)$/.exec(text);
    if (gone) gone[1].split(", ").forEach(one => died(deaths, ms, one));
    if (job !== selected || rank === null) continue;
    if (name === "checkpoint") { checkpoints.push([ms, rank]); continue; }
    if (!STEPS.includes(name)) continue;
    const before = open.get(rank);
    if (before) bars.push({ rank, step: NAMES[before.name], from: before.ms, to: ms });
    if (name === "re-protected" || name === "live" && !before) open.delete(rank); else open.set(rank, { ms, name });
  }
  const now = Date.now();
  for (const [rank, { ms, name }] of open) bars.push({ rank, step: NAMES[name], from: ms, to: now, open: true });
  return { bars, deaths, checkpoints };
}

function died(deaths, ms, node) {
  if (!deaths.some(([before, known]) => known === node && Math.abs(before - ms) < 10000)) deaths.push([ms, node]);
}

let lineSpots = [];
function drawLine() {
  const { pen, width, height } = canvas("line"), span = Number(at("span").value) * 1000, now = Date.now();
  const { bars, deaths, checkpoints } = recoveries(known.events), left = 46;
  const x = ms => left + (width - left - 8) * (1 - (now - ms) / span);
  const inside = ms => ms >= now - span;
  const ranks = [...new Set([...bars.filter(bar => inside(bar.to)).map(bar => bar.rank), ...checkpoints.filter(c => inside(c[0])).map(c => c[1])])].sort((a, b) => a - b);
  const troubled = new Set(bars.filter(bar => inside(bar.to)).map(bar => bar.rank));
  let lines = ranks;
  if (ranks.length > LINES) lines = ranks.filter(rank => troubled.has(rank)).concat(ranks.filter(rank => !troubled.has(rank))).slice(0, LINES).sort((a, b) => a - b);
  const high = Math.min(18, (height - 24) / Math.max(lines.length, 1)), y = rank => 4 + lines.indexOf(rank) * high;
  lineSpots = [];
  pen.textAlign = "right"; pen.fillStyle = color("soft");
  if (high >= 10) lines.forEach(rank => pen.fillText(`rank ${rank}`, left - 5, y(rank) + high - 4));
  pen.textAlign = "center";
  const marks = width < 500 ? 2 : 4;
  for (let i = 0; i <= marks; i++) { const ms = now - span * i / marks; pen.fillText(clock(ms), Math.min(Math.max(x(ms), left + 24), width - 30), height - 4); }
  pen.fillStyle = color("good");
  for (const [ms, rank] of checkpoints) if (inside(ms) && lines.includes(rank)) pen.fillRect(x(ms) - 1, y(rank) + 2, 2, Math.max(high - 4, 1));
  for (const bar of bars) {
    if (!inside(bar.to) || !lines.includes(bar.rank)) continue;
    const from = Math.max(x(bar.from), left), long = Math.max(x(bar.to) - from, 2);
    pen.fillStyle = hue(bar.step); pen.fillRect(from, y(bar.rank) + 1, long, Math.max(high - 2, 1));
    lineSpots.push([from, y(bar.rank), long, high, `rank ${bar.rank}, ${bar.step}: ${time(bar.to - bar.from)}${bar.open ? ", still" : ""}, from ${clock(bar.from)}`]);
  }
  pen.strokeStyle = color("bad"); pen.lineWidth = 1;
  for (const [ms, node] of deaths) {
    if (!inside(ms)) continue;
    pen.beginPath(); pen.moveTo(x(ms), 0); pen.lineTo(x(ms), height - 18); pen.stroke();
    lineSpots.push([x(ms) - 3, 0, 6, height - 18, `${node} was gone at ${clock(ms)}`]);
  }
  if (ranks.length > LINES) at("line-about").textContent = `${LINES} of ${ranks.length} ranks are drawn, those in trouble first.`;
}

function drawKey() {
  const key = at("line-key"), steps = [...new Set(Object.values(NAMES))];
  const put = (paint, text) => { const box = document.createElement("span"); box.className = "key"; box.style.setProperty("background", paint); key.append(box, text); };
  put("var(--good)", "checkpoint"); put("var(--bad)", "a node is gone"); steps.forEach(step => put(hue(step), step));
}

let cells = null;
function drawMatrix() {
  const { pen, width, height } = canvas("matrix"), traffic = known.traffic.get(selected), job = known.jobs.get(selected);
  cells = null;
  if (!traffic || !job) { at("matrix-about").textContent = job ? "not asked for yet, or the job is over" : "no job"; return; }
  // Many ranks share a cell.
  const side = Math.min(width, height), count = Math.min(job.ranks, Math.floor(side / 2)), each = job.ranks / count, edge = side / count;
  const sums = new Float64Array(count * count); let most = 0, all = 0;
  for (const [from, to, bytes] of traffic.pairs) {
    const cell = Math.floor(from / each) * count + Math.floor(to / each);
    if (cell < sums.length) { sums[cell] += bytes; most = Math.max(most, sums[cell]); all += bytes; }
  }
  const left = (width - side) / 2;
  pen.strokeStyle = color("edge"); pen.strokeRect(left, 0, side, side); pen.fillStyle = color("mark");
  for (let i = 0; i < sums.length; i++) {
    if (!sums[i]) continue;
    // By orders of magnitude: a rank that hardly sends is seen, too.
    pen.globalAlpha = .12 + .88 * Math.log1p(sums[i]) / Math.log1p(most);
    pen.fillRect(left + i % count * edge, Math.floor(i / count) * edge, Math.max(edge - (edge > 6 ? 1 : 0), 1), Math.max(edge - (edge > 6 ? 1 : 0), 1));
  }
  pen.globalAlpha = 1;
  cells = { sums, count, each, edge, left };
  at("matrix-about").textContent = `${size(all)} between ${job.ranks} ranks; rows send, columns receive${traffic.others ? `; ${size(traffic.others)} from elsewhere` : ""}${traffic.partial ? "; not complete" : ""}. Counted since connections began that are open now.`;
}

function touched(id, say) {
  at(id).addEventListener("pointerdown", event => { const box = at(id).getBoundingClientRect(); say(event.clientX - box.left, event.clientY - box.top); });
}
touched("ring", (x, y) => {
  const near = ringSpots.map(([name, a, b, r]) => [Math.hypot(a - x, b - y) - r, name]).sort((a, b) => a[0] - b[0])[0];
  pickedNode = near && near[0] < 12 ? near[1] : null; ask();
});
touched("line", (x, y) => {
  const hit = lineSpots.find(([a, b, w, h]) => x >= a - 2 && x <= a + w + 2 && y >= b && y <= b + h);
  if (hit) at("line-about").textContent = hit[4];
});
touched("matrix", (x, y) => {
  if (!cells) return;
  const column = Math.floor((x - cells.left) / cells.edge), row = Math.floor(y / cells.edge);
  if (column < 0 || row < 0 || column >= cells.count || row >= cells.count) return;
  const name = i => cells.each > 1 ? `ranks ${Math.ceil(i * cells.each)} to ${Math.ceil((i + 1) * cells.each) - 1}` : `rank ${i}`;
  at("matrix-about").textContent = `${name(row)} to ${name(column)}: ${size(cells.sums[row * cells.count + column])} bytes`;
});
at("jobs").tBodies[0].addEventListener("click", event => { const row = event.target.closest("tr"); if (row) { selected = row.dataset.key; ask(); } });
at("filter").addEventListener("input", ask);
at("span").addEventListener("change", ask);
addEventListener("resize", ask);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", ask);
document.addEventListener("visibilitychange", ask);
// Ages and the time line move without anything being told.
setInterval(ask, 1000);
drawKey();
reconnect();
