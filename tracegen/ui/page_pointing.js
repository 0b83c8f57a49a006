// Pointer, wheel and keyboard: zoom, pan, and the box that names a tile.
// One of the three parts of the page's script, which html.py joins: model, drawing, pointing.
// What stands at a point: a tile, or a kernel.
function at(px, py) {
  const rank = Math.floor((py + view.top - MARGIN) / pitch), inside = py - y(rank);
  if (!(rank >= 0 && rank < p) || px < left || px > left + plot() || py > height - AXIS) return null;
  if (inside <= TALL) return find(rank, rows[rank], px, 0, TALL, null);
  const stream = Math.floor((inside - TALL - 2) / STREAM);
  if (!streams || stream < 0 || stream > 1) return null;
  const top = TALL + 2 + stream * STREAM;
  return find(rank, kernels[2 * rank + stream], px, top, STREAM - 1, stream);
}

function find(rank, row, px, top, tall, stream) {
  const i = firstAfter(row, time(px));
  // A tile narrower than a pixel is met by the pixel it stands in.
  if (i >= row.count || row.start[i] > time(px + 1)) return null;
  return pick(rank, row, i, top, tall, stream);
}

function pick(rank, row, i, top = 0, tall = TALL, stream = null) {
  const wanted = stream === null ? part(row, i, 4) : 0;
  return { rank, row, i, top, tall, stream, wanted };
}

function words({ rank, row, i, stream, wanted }) {
  const when = `starts ${timeText(row.start[i])}, lasts ${timeText(row.end[i] - row.start[i])}`;
  const what = part(row, i, 2), mate = part(row, i, 3);
  if (stream !== null && !data.kernelNames) {
    return [nameOf(mate), `rank ${rank}, communication stream`, when];
  }
  if (stream !== null) {
    const name = data.kernelNames[what % 10] + ", layer " + Math.floor(what / 10);
    const where = stream ? "communication" : "compute";
    return [name, `of ${nameOf(mate)}, rank ${rank}, ${where} stream`, when];
  }
  const lines = [nameOf(what) + (mate ? " + " + nameOf(mate - 1) : "")];
  const halves = mate ? [what, mate - 1] : [what];
  for (const half of halves) {
    const kind = data.fills[kindOf(half)][2];
    const batch = hasBatch(half) ? `, microbatch ${batchOf(half)}` : "";
    lines.push(`${kind}, stage ${stageOf(half)}${batch}`);
  }
  lines.push(`rank ${rank}, ${when}`);
  const waited = part(row, i, 0) * data.unit;
  if (waited > 0) {
    const source = sourceOf(wanted, row, i), whose = source ? ` of rank ${source[0]}` : "";
    const on = wanted ? ` for ${nameOf(wanted - 1)}${whose}` : "";
    lines.push(`waited ${timeText(waited)}${on}`);
  }
  return lines;
}

// Show what is picked in the box beside it, or hide the box.
function show(found, px, py, aloud) {
  picked = found;
  tip.hidden = !found;
  if (found) {
    const [name, ...rest] = words(found);
    const head = document.createElement("strong");
    head.textContent = name;
    tip.replaceChildren(head, ...rest.map((text) => {
      const line = document.createElement("div");
      line.textContent = text;
      return line;
    }));
    const box = canvas.getBoundingClientRect();
    const beside = px + 16 + tip.offsetWidth > width ? px - 16 - tip.offsetWidth : px + 16;
    const above = py + 16 + tip.offsetHeight > height ? py - 16 - tip.offsetHeight : py + 16;
    tip.style.left = box.left + scrollX + Math.max(0, beside) + "px";
    tip.style.top = box.top + scrollY + Math.max(0, above) + "px";
    if (aloud) status.textContent = [name, ...rest].join("; ");
  }
  later();
}

function clamp() {
  const span = Math.min(whole, Math.max(view.to - view.from, Math.min(whole, 20)));
  view.from = Math.min(Math.max(0, view.from), whole - span);
  view.to = view.from + span;
  const most = Math.max(0, 2 * MARGIN + p * pitch - (height - AXIS));
  view.top = Math.min(Math.max(0, view.top), most);
  later();
}

function zoom(factor, px) {
  const ns = time(Math.min(Math.max(px, left), left + plot()));
  // Not closer than 20 ns, not wider than the whole: the time under the pointer stays there.
  const span = Math.min(whole, Math.max(Math.min(whole, 20), (view.to - view.from) * factor));
  const scale = span / (view.to - view.from);
  view.from = ns - (ns - view.from) * scale;
  view.to = view.from + span;
  clamp();
}

function pan(dx, dy) {
  const ns = dx / plot() * (view.to - view.from);
  view.from += ns;
  view.to += ns;
  view.top += dy;
  clamp();
}

function fit() {
  Object.assign(view, { from: 0, to: whole });
  clamp();
}

// The next or previous tile of the rank in view, brought into view and read aloud.
function step(by) {
  let rank = picked?.rank ?? Math.max(0, Math.ceil((view.top - MARGIN) / pitch));
  let i = picked && picked.stream === null ? picked.i + by : firstAfter(rows[rank], view.from);
  if (i >= rows[rank].count && rank + 1 < p) [rank, i] = [rank + 1, 0];
  if (i < 0 && rank > 0) [rank, i] = [rank - 1, rows[rank - 1].count - 1];
  const row = rows[rank];
  if (i < 0 || i >= row.count) return;
  const middle = (row.start[i] + row.end[i]) / 2, span = view.to - view.from;
  if (middle < view.from || middle > view.to) {
    Object.assign(view, { from: middle - span / 2, to: middle + span / 2 });
  }
  if (y(rank) < 0) view.top += y(rank) - MARGIN;
  if (y(rank) + pitch > height - AXIS) view.top += y(rank) + pitch - (height - AXIS);
  clamp();
  show(pick(rank, row, i), x(middle), y(rank) + TALL, true);
}

const KEYS = {
  ArrowLeft: () => pan(-0.15 * plot(), 0),
  ArrowRight: () => pan(0.15 * plot(), 0),
  ArrowUp: () => pan(0, -pitch),
  ArrowDown: () => pan(0, pitch),
  "+": () => zoom(0.7, left + plot() / 2),
  "=": () => zoom(0.7, left + plot() / 2),
  "-": () => zoom(1 / 0.7, left + plot() / 2),
  0: fit,
  Home: fit,
  ".": () => step(1),
  ",": () => step(-1),
  Escape: () => show(null),
};
canvas.addEventListener("keydown", (event) => {
  const act = KEYS[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  if (!".,".includes(event.key)) show(null);
  act();
});

const where = (event) => {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
};
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? height : 1;
  const dx = (event.shiftKey ? event.deltaX || event.deltaY : event.deltaX) * unit;
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(dx, 0);
  else zoom(Math.exp(Math.max(-300, Math.min(300, event.deltaY * unit)) * 0.002), where(event)[0]);
  show(at(...where(event)), ...where(event));
}, { passive: false });

// One pointer drags; two zoom.
const held = new Map();
canvas.addEventListener("pointerdown", (event) => {
  canvas.setPointerCapture(event.pointerId);
  held.set(event.pointerId, where(event));
  canvas.classList.add("held");
});
canvas.addEventListener("pointermove", (event) => {
  const now = where(event), before = held.get(event.pointerId);
  if (!before) {
    show(at(...now), ...now);
    return;
  }
  const other = [...held].find(([id]) => id !== event.pointerId)?.[1];
  held.set(event.pointerId, now);
  if (other) {
    const was = Math.abs(before[0] - other[0]), is = Math.abs(now[0] - other[0]);
    if (was > 8 && is > 8) zoom(was / is, (now[0] + other[0]) / 2);
  } else {
    pan(before[0] - now[0], before[1] - now[1]);
  }
  show(null);
});
for (const over of ["pointerup", "pointercancel"]) {
  canvas.addEventListener(over, (event) => {
    held.delete(event.pointerId);
    canvas.classList.toggle("held", held.size > 0);
    if (over === "pointerup") show(at(...where(event)), ...where(event));
  });
}
canvas.addEventListener("pointerleave", () => held.size || show(null));
canvas.addEventListener("dblclick", fit);

function theme() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["lane", "ink", "faint", "grid", "edge", "curve"]) {
    colours[name] = style.getPropertyValue("--" + name).trim();
  }
  later();
}

function resize() {
  const room = innerHeight - canvas.getBoundingClientRect().top - scrollY - 14;
  width = Math.max(200, canvas.parentElement.clientWidth);
  height = Math.max(120, Math.min(2 * MARGIN + p * pitch + AXIS, room));
  canvas.width = Math.round(width * devicePixelRatio);
  canvas.height = Math.round(height * devicePixelRatio);
  canvas.style.width = width + "px";
  canvas.style.height = height + "px";
  clamp();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme);
addEventListener("resize", resize);
theme();
resize();
