// Nodes as squares on one canvas. Drawing 5,000 takes some milliseconds, a look's changes a fraction of that.

import { colour } from "./dom.js";

const FULL = 200;
const OVER = 201;
const NOTHING = 255;
const CLOSED = 2 | 8; // flags: cordoned, quarantined
const LEAST_HEIGHT = 190;
const LARGEST_CELL = 34;

export class HeatMap {
  /** `on.focus(row | null)` when the pointer or the keyboard comes to another node; `on.choose(row)`. */
  constructor(canvas, on) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
    this.on = on;
    this.nodes = null;
    this.column = 0;
    this.focused = null;
    canvas.addEventListener("pointermove", (event) => this.focus(this.rowAt(event)));
    canvas.addEventListener("pointerleave", () => document.activeElement !== canvas && this.focus(null));
    canvas.addEventListener("click", (event) => this.on.choose(this.rowAt(event)));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => this.focus(this.focused ?? (this.count ? 0 : null)));
    new ResizeObserver(() => this.layOut()).observe(canvas.parentElement);
    this.restyle();
  }

  get count() {
    return this.nodes ? this.nodes.names.length : 0;
  }

  /** The theme changed. */
  restyle() {
    const stops = [0, 1, 2, 3].map((i) => channels(colour(`--heat-${i}`)));
    this.colours = Array.from({ length: FULL + 1 }, (_, value) => mixed(stops, value / FULL));
    this.over = colour("--bad");
    this.none = colour("--none");
    this.warn = colour("--warn");
    this.ring = colour("--text");
    this.page = colour("--card");
    this.drawAll();
  }

  show(nodes, rows) {
    const others = rows === "all";
    this.nodes = nodes;
    if (others) {
      if (this.focused !== null && this.focused >= this.count) this.focused = null;
      this.layOut();
    } else {
      for (const row of rows) this.draw(row);
    }
    if (this.focused !== null) this.drawRing();
  }

  colourBy(column) {
    this.column = column;
    this.drawAll();
  }

  layOut() {
    const width = this.canvas.parentElement.clientWidth;
    if (!width || !this.count) return;
    const height = Math.max(LEAST_HEIGHT, this.canvas.parentElement.clientHeight);
    let cell = Math.min(LARGEST_CELL, Math.max(3, Math.floor(Math.sqrt((width * height) / this.count))));
    while (cell > 3 && Math.ceil(this.count / Math.floor(width / cell)) * cell > height) cell--;
    this.cell = cell;
    this.gap = cell >= 12 ? 2 : cell >= 4 ? 1 : 0;
    this.columns = Math.max(1, Math.floor(width / cell));
    const drawn = Math.ceil(this.count / this.columns) * cell;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(drawn * ratio);
    this.canvas.style.height = `${drawn}px`;
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.drawAll();
  }

  drawAll() {
    if (!this.cell || !this.count) return;
    this.pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    for (let row = 0; row < this.count; row++) this.draw(row);
    if (this.focused !== null) this.drawRing();
  }

  draw(row) {
    const { values, stride } = this.nodes;
    const value = values[row * stride + this.column];
    const x = (row % this.columns) * this.cell;
    const y = Math.floor(row / this.columns) * this.cell;
    const side = this.cell - this.gap;
    this.pen.fillStyle = value === NOTHING ? this.none : value === OVER ? this.over : this.colours[value];
    this.pen.fillRect(x, y, side, side);
    if (values[row * stride + stride - 1] & CLOSED) {
      this.pen.fillStyle = this.warn;
      this.pen.fillRect(x, y, side, Math.max(1, Math.round(side / 3.5)));
    }
  }

  drawRing() {
    const x = (this.focused % this.columns) * this.cell;
    const y = Math.floor(this.focused / this.columns) * this.cell;
    const side = this.cell - this.gap;
    this.pen.lineWidth = 2;
    this.pen.strokeStyle = this.ring;
    this.pen.strokeRect(x + 1, y + 1, side - 2, side - 2);
  }

  focus(row) {
    if (row === this.focused) return;
    const before = this.focused;
    this.focused = row;
    if (this.cell && before !== null && before < this.count) this.draw(before);
    if (this.cell && row !== null) this.drawRing();
    this.on.focus(row);
  }

  rowAt(event) {
    if (!this.cell) return null;
    const column = Math.floor(event.offsetX / this.cell);
    const row = Math.floor(event.offsetY / this.cell) * this.columns + column;
    return column < this.columns && row >= 0 && row < this.count ? row : null;
  }

  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns, PageUp: -10 * this.columns, PageDown: 10 * this.columns, Home: -Infinity, End: Infinity };
    if (!this.count) return;
    if (event.key === "Enter" || event.key === " ") this.on.choose(this.focused);
    else if (event.key in steps) this.focus(Math.min(this.count - 1, Math.max(0, (this.focused ?? 0) + steps[event.key])));
    else return;
    event.preventDefault();
  }
}

const channels = (text) => text.match(/[\d.]+/g).slice(0, 3).map(Number);

function mixed(stops, share) {
  const at = share * (stops.length - 1);
  const low = Math.min(stops.length - 2, Math.floor(at));
  const parts = stops[low].map((from, i) => Math.round(from + (stops[low + 1][i] - from) * (at - low)));
  return `rgb(${parts.join(" ")})`;
}
