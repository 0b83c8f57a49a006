// The page's data as columns, the view, and where times and ranks are on the canvas.
// One of the three parts of the page's script, which html.py joins: model, drawing, pointing.
const data = JSON.parse(document.getElementById("data").textContent);
const canvas = document.querySelector("canvas");
const tip = document.getElementById("tip");
const status = document.getElementById("status");
const pen = canvas.getContext("2d");

const TALL = 28, STREAM = 14, CURVE = 18, GAP = 7, AXIS = 26, MARGIN = 8;
const NAMED = 3;  // pixels from which a tile has an edge and may have a number
const ORDER = [4, 0, 2, 3, 5, 1];  // of a column's shares, from the top: the rest, F, I, W, R, B
const FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif";
const whole = Math.max(1, data.whole);
const p = data.rows.length, stages = data.ranks.length;
const streams = data.kernels ? 2 * STREAM + 2 : 0;
const pitch = TALL + streams + (data.memory ? CURVE + 3 : 0) + GAP;
const left = 58 + 7 * String(p - 1).length, right = data.memory ? 64 : 14;

// What a number says: kind + 16 * (stage + stages * microbatch). Kinds from 4 on are no compute
// and share a fill; those from 8 on are of a whole stage, but 15: what an action recomputes first.
const AGAIN = 15;
const kindOf = (what) => what % 16 === AGAIN ? 5 : Math.min(4, what % 16);
const stageOf = (what) => Math.floor(what / 16) % stages;
const batchOf = (what) => Math.floor(what / (16 * stages));
const hasBatch = (what) => what % 16 < 8 || what % 16 === AGAIN;
const labelOf = (what) => kindOf(what) !== 4 ? String(batchOf(what)) : "";
const nameOf = (what) => what % 16 === AGAIN
  ? `recomputation of ${stageOf(what)}F${batchOf(what)}`
  : stageOf(what) + data.kinds[what % 16] + (hasBatch(what) ? batchOf(what) : "");

// Rows of [gap, duration, ...rest] become columns; a gap is counted from the end before.
function columns(flat, size) {
  const count = flat.length / size;
  const row = { count, start: new Float64Array(count), end: new Float64Array(count), flat, size };
  let at = 0;
  for (let i = 0; i < count; i++) {
    at += flat[i * size] * data.unit;
    row.start[i] = at;
    at += flat[i * size + 1] * data.unit;
    row.end[i] = at;
  }
  return row;
}
const part = (row, i, column) => row.flat[i * row.size + column];
const rows = data.rows.map((flat) => columns(flat, 5));
const arrows = data.arrows || [];
const kernels = (data.kernels || []).map((flat) => columns(flat, 5));
const curves = (data.memory || []).map((flat) => columns(flat, 3));

// Where every result is made: "what" -> its tiles, as [rank, tile], one in every training step.
const made = new Map();
rows.forEach((row, rank) => {
  const add = (what, i) => made.has(what) ? made.get(what).push([rank, i]) : made.set(what, [[rank, i]]);
  for (let i = 0; i < row.count; i++) {
    add(part(row, i, 2), i);
    if (part(row, i, 3)) add(part(row, i, 3) - 1, i);
  }
});
// The tile that a tile waited for: the last of its kind that ended before.
function sourceOf(wanted, row, i) {
  const tiles = wanted ? made.get(wanted - 1) ?? [] : [];
  return tiles.findLast(([rank, j]) => rows[rank].end[j] <= row.start[i]) ?? tiles[0];
}

const view = { from: 0, to: whole, top: 0 };
let width = 0, height = 0, picked = null, colours = {}, waiting = false;

const plot = () => Math.max(1, width - left - right);
const x = (ns) => left + (ns - view.from) / (view.to - view.from) * plot();
const time = (px) => view.from + (px - left) / plot() * (view.to - view.from);
const y = (rank) => MARGIN + rank * pitch - view.top;

function timeText(ns, beside) {
  const units = [["s", 1e9], ["ms", 1e6], ["\u00b5s", 1e3], ["ns", 1]];
  const [unit, size] = units.find(([, size]) => (beside ?? ns) >= size) ?? units[3];
  return String(Number((ns / size).toFixed(6))) + "\u00a0" + unit;
}

// The first tile of a row that ends after a time.
function firstAfter(row, ns) {
  let low = 0, high = row.count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row.end[middle] > ns) high = middle; else low = middle + 1;
  }
  return low;
}
