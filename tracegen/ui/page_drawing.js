// What is drawn: tiles, kernels, curves, arrows, the axis.
// One of the three parts of the page's script, which html.py joins: model, drawing, pointing.
function draw() {
  waiting = false;
  pen.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
  pen.clearRect(0, 0, width, height);
  const first = Math.max(0, Math.floor((view.top - MARGIN) / pitch));
  const last = Math.min(p - 1, Math.floor((view.top + height - AXIS) / pitch));
  pen.save();
  pen.beginPath();
  pen.rect(0, 0, width, height - AXIS);
  pen.clip();
  drawGrid();
  for (let rank = first; rank <= last; rank++) drawRank(rank);
  if (arrows.length) drawArrows(first, last);
  if (picked) drawPicked();
  pen.restore();
  drawAxis();
  Object.assign(canvas.dataset, { from: view.from, to: view.to, top: view.top });
}

function later() {
  if (!waiting) {
    waiting = true;
    requestAnimationFrame(draw);
  }
}

function ticks() {
  const most = Math.max(2, plot() / 100), span = view.to - view.from;
  let step = 1;
  for (let k = 0; span / step > most; k++) step = 10 ** Math.floor(k / 3) * [1, 2, 5][k % 3];
  const found = [];
  for (let ns = Math.ceil(view.from / step) * step; ns <= view.to; ns += step) found.push(ns);
  return found;
}

function drawGrid() {
  pen.fillStyle = colours.grid;
  for (const ns of ticks()) pen.fillRect(x(ns), 0, 1, height - AXIS);
}

function drawAxis() {
  pen.fillStyle = colours.faint;
  pen.font = "11px " + FONT;
  pen.textAlign = "center";
  for (const ns of ticks()) {
    pen.fillText(ns ? timeText(ns, view.to) : "0", x(ns), height - AXIS + 15);
  }
}

function drawRank(rank) {
  const at = y(rank);
  pen.fillStyle = colours.lane;
  pen.fillRect(left, at, plot(), TALL);
  pen.save();
  pen.beginPath();
  pen.rect(left, at - 2, plot(), pitch);
  pen.clip();
  drawRow(rows[rank], at, TALL, drawTile);
  if (data.kernels) {
    for (const stream of [0, 1]) {
      const top = at + TALL + 2 + stream * STREAM;
      drawRow(kernels[2 * rank + stream], top, STREAM - 1, drawKernel);
    }
  }
  if (data.memory) drawMemory(curves[rank], at + TALL + streams + CURVE + 1);
  pen.restore();
  pen.fillStyle = colours.ink;
  pen.font = "12px " + FONT;
  pen.textAlign = "right";
  pen.fillText("rank " + rank, left - 8, at + TALL / 2 + 4);
  if (data.memory) {
    pen.fillStyle = colours.faint;
    pen.textAlign = "left";
    pen.fillText("peak " + data.peaks[rank], left + plot() + 5, at + TALL + streams + CURVE - 2);
  }
}

// The tiles of a row in view: by themselves where there is a pixel for each, else as shares of
// the pixels, stacked by kind.
function drawRow(row, at, tall, drawOne) {
  const shares = new Float32Array(6 * (Math.ceil(plot()) + 2));
  let narrow = false;
  for (let i = firstAfter(row, view.from); i < row.count && row.start[i] < view.to; i++) {
    const x0 = Math.max(x(row.start[i]), left - 4), x1 = Math.min(x(row.end[i]), left + plot() + 4);
    if (x1 - x0 >= 1) {
      drawOne(row, i, x0, x1, at, tall);
      continue;
    }
    narrow = true;
    const column = Math.floor(x0 - left), cut = Math.min(x1 - left, column + 1) - (x0 - left);
    for (const [kind, part] of drawOne.kinds(row, i)) {
      if (column >= 0) shares[6 * column + kind] += cut * part;
      if (column >= -1) shares[6 * (column + 1) + kind] += (x1 - x0 - cut) * part;
    }
  }
  if (narrow) drawShares(shares, at, tall);
}

function drawShares(shares, at, tall) {
  for (let column = 0; 6 * column < shares.length; column++) {
    let top = 0;
    for (const kind of ORDER) {
      const share = Math.min(1, shares[6 * column + kind]) * tall;
      if (!share) continue;
      pen.fillStyle = data.fills[kind][0];
      pen.fillRect(left + column, at + top, 1, share);
      top += share;
    }
  }
}

function drawTile(row, i, x0, x1, at, tall) {
  const what = part(row, i, 2), mate = part(row, i, 3);
  if (!mate) {
    drawCell(what, x0, x1, at, tall);
    return;
  }
  drawCell(what, x0, x1, at, tall / 2);
  drawCell(mate - 1, x0, x1, at + tall / 2, tall / 2);
  if (x1 - x0 >= NAMED) outline(x0, at, x1 - x0, tall, colours.edge, 1.6);
}
drawTile.kinds = (row, i) => {
  const what = part(row, i, 2), mate = part(row, i, 3);
  return mate ? [[kindOf(what), 0.5], [kindOf(mate - 1), 0.5]] : [[kindOf(what), 1]];
};

function drawCell(what, x0, x1, at, tall) {
  const [fill, ink] = data.fills[kindOf(what)];
  pen.fillStyle = fill;
  pen.fillRect(x0, at, x1 - x0, tall);
  if (x1 - x0 < NAMED) return;
  if (kindOf(what) === 5) {
    const rim = Math.min(3, (x1 - x0) / 4);
    pen.fillStyle = "#fff";
    pen.fillRect(x0 + rim, at + 3, x1 - x0 - 2 * rim, tall - 6);
  }
  const foot = 0.3 * tall * data.index[stageOf(what)] / Math.max(2, data.v - 1);
  pen.fillStyle = "rgba(0, 0, 0, 0.5)";
  pen.fillRect(x0, at + tall - foot, x1 - x0, foot);
  outline(x0, at, x1 - x0, tall, colours.edge, 0.6);
  const number = labelOf(what);
  const size = Math.min(13, tall * 0.84, (x1 - x0 - 2) / (0.64 * (number.length || 1)));
  if (size < 6) return;
  pen.fillStyle = ink;
  pen.font = size + "px " + FONT;
  pen.textAlign = "center";
  pen.fillText(number, (x0 + x1) / 2, at + (tall - foot) / 2 + size * 0.36);
}

function drawKernel(row, i, x0, x1, at, tall) {
  pen.fillStyle = data.fills[part(row, i, 4)][0];
  pen.fillRect(x0, at, x1 - x0, tall);
  if (x1 - x0 >= NAMED) outline(x0, at, x1 - x0, tall, colours.lane, 0.6);
  const name = data.kernelNames ? data.kernelNames[part(row, i, 2) % 10] : nameOf(part(row, i, 3));
  if (x1 - x0 < 6 * name.length) return;
  pen.fillStyle = data.fills[part(row, i, 4)][1];
  pen.font = "10px " + FONT;
  pen.textAlign = "center";
  pen.fillText(name, (x0 + x1) / 2, at + tall - 3.5);
}
drawKernel.kinds = (row, i) => [[part(row, i, 4), 1]];

function outline(at, top, wide, tall, colour, thick) {
  pen.strokeStyle = colour;
  pen.lineWidth = thick;
  pen.strokeRect(at, top, wide, tall);
}

function drawMemory(row, floor) {
  const scale = CURVE / (Math.max(...data.peaks) || 1);
  pen.beginPath();
  pen.moveTo(left, floor);
  for (let i = firstAfter(row, view.from); i < row.count && row.start[i] < view.to; i++) {
    const high = floor - part(row, i, 2) * scale;
    pen.lineTo(Math.max(left, x(row.start[i])), high);
    pen.lineTo(Math.min(left + plot(), x(row.end[i])), high);
  }
  pen.lineTo(Math.min(left + plot(), x(whole)), floor);
  pen.globalAlpha = 0.45;
  pen.fillStyle = colours.curve;
  pen.fill();
  pen.globalAlpha = 1;
  pen.strokeStyle = colours.curve;
  pen.lineWidth = 0.8;
  pen.stroke();
}

// Arrows into the ranks in view whose tiles are wide enough to be told apart. A rank's are a
// flat list of [tile, rank it comes from, tile there, whether it is an activation].
function drawArrows(first, last) {
  pen.strokeStyle = colours.ink;
  for (let rank = first; rank <= last; rank++) {
    const row = rows[rank], flat = arrows[rank], begin = firstAfter(row, view.from);
    for (let k = firstArrow(flat, begin); k < flat.length; k += 4) {
      const [i, from, j, forward] = flat.slice(k, k + 4);
      if (row.start[i] >= view.to) break;
      if (x(row.end[i]) - x(row.start[i]) < NAMED) continue;
      pen.setLineDash(forward ? [] : [3, 2]);
      drawArrow([from, j], [rank, i], 0.7);
    }
  }
  pen.setLineDash([]);
}

function firstArrow(flat, tile) {
  let low = 0, high = flat.length / 4;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (flat[4 * middle] >= tile) high = middle; else low = middle + 1;
  }
  return 4 * low;
}

function drawArrow([fromRank, i], [toRank, j], alpha) {
  const x0 = x(rows[fromRank].end[i]), y0 = y(fromRank) + TALL / 2;
  const x1 = x(rows[toRank].start[j]), y1 = y(toRank) + TALL / 2;
  const angle = Math.atan2(y1 - y0, x1 - x0);
  pen.globalAlpha = alpha;
  pen.lineWidth = 1;
  pen.beginPath();
  pen.moveTo(x0, y0);
  pen.lineTo(x1, y1);
  for (const turn of [2.7, -2.7]) {
    pen.moveTo(x1, y1);
    pen.lineTo(x1 + 6 * Math.cos(angle + turn), y1 + 6 * Math.sin(angle + turn));
  }
  pen.stroke();
  pen.globalAlpha = 1;
}

function drawPicked() {
  const { rank, i, row, top, tall, wanted } = picked;
  const x0 = Math.max(left, x(row.start[i])), x1 = Math.min(left + plot(), x(row.end[i]));
  if (x1 > x0) outline(x0, y(rank) + top, x1 - x0, tall, colours.ink, 2.5);
  const source = sourceOf(wanted, row, i);
  pen.strokeStyle = colours.ink;
  if (source && source[0] !== rank) drawArrow(source, [rank, i], 1);
}
