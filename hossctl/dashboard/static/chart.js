// Curves over the last minutes, an hour at most, as one SVG that is drawn anew with every look, and the same numbers
// as a table for whoever opens it.

import { caption, make } from "./dom.js";
import { clock } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const SPANS = [[60_000, 15_000], [120_000, 30_000], [300_000, 60_000], [900_000, 180_000], [3_600_000, 600_000]]; // shown, and between two marks: the least that holds all
const SPAN_MS = 300_000;
const GAP_MS = 5000;
const MOST_ROWS = 12; // of the table
const LEFT = 46;
const BOTTOM = 18;
const TOP = 8;

export class Chart {
  /** `lines`: [{name, of: (point) => number | null}]; `log`: whether heights are logarithms; `gapMs`: points that are
   * farther apart are not joined; `most`: what the height stands for at least; `spanMs`: the longest time shown; `empty`: said where every
   * value is 0. */
  constructor(holder, legend, lines, { log, write, gapMs = GAP_MS, spanMs = SPAN_MS, most = 0, empty = "No pods went through yet." }) {
    Object.assign(this, { holder, legend, lines, log, write, gapMs, spanMs, most, points: [], at: 0, hovered: null });
    this.svg = svg("svg", { "aria-hidden": "true" });
    holder.append(this.svg, make("p", { class: "waiting" }, empty));
    this.title = holder.closest("section")?.querySelector("h2, h3")?.textContent.trim() ?? "";
    const summary = make("summary", { "aria-label": `As a table: ${this.title}` }, "As a table");
    this.numbers = make("details", { class: "numbers", ontoggle: () => this.tabulate() }, summary);
    holder.after(this.numbers);
    holder.addEventListener("pointermove", (event) => this.hover(event.offsetX));
    holder.addEventListener("pointerleave", () => this.hover(null));
    new ResizeObserver(() => this.draw()).observe(holder);
  }

  show(points, at) {
    this.points = points.filter((point) => point[0] > at - this.spanMs);
    this.at = at;
    this.draw();
    this.tabulate();
  }

  /** The latest points, evenly chosen of those that are shown; only while somebody has opened it. */
  tabulate() {
    if (!this.numbers.open) return;
    const step = Math.max(1, Math.ceil(this.points.length / MOST_ROWS));
    const chosen = this.points.filter((_, i) => (this.points.length - 1 - i) % step === 0).reverse();
    const written = (value) => (value === null ? "–" : this.write(value));
    const head = make("tr", {}, ...["Time", ...this.lines.map((line) => line.name)].map((name) => make("th", { scope: "col" }, name)));
    const rows = chosen.map((point) => make("tr", {}, make("th", { scope: "row" }, clock(point[0])), ...this.lines.map((line) => make("td", {}, written(line.of(point))))));
    this.numbers.querySelector("table")?.remove();
    this.numbers.append(make("table", {}, caption(this.title), make("thead", {}, head), make("tbody", {}, ...rows)));
  }

  hover(x) {
    this.hovered = x;
    this.draw();
  }

  draw() {
    const width = this.holder.clientWidth;
    const height = this.holder.clientHeight;
    if (!width || !this.at) return;
    const values = this.points.flatMap((point) => this.lines.map((line) => line.of(point))).filter((value) => value !== null);
    this.holder.querySelector(".waiting").hidden = values.some((value) => value > 0);
    const ticks = this.log ? decades(values) : steps(Math.max(this.most, ...values));
    const [low, high] = [ticks[0], ticks[ticks.length - 1]];
    const raise = this.log
      ? (value) => (Math.log10(Math.max(value, low)) - Math.log10(low)) / (Math.log10(high) - Math.log10(low))
      : (value) => value / high;
    const age = this.points.length ? this.at - this.points[0][0] : 0;
    const [span, mark] = SPANS.find(([most]) => age <= most) ?? SPANS[SPANS.length - 1];
    const x = (at) => LEFT + (1 - (this.at - at) / span) * (width - LEFT - 2);
    const y = (value) => TOP + (1 - raise(value)) * (height - TOP - BOTTOM);
    const parts = ticks.flatMap((tick) => [
      svg("line", { class: "grid", x1: LEFT, x2: width, y1: y(tick), y2: y(tick) }),
      svg("text", { x: LEFT - 7, y: y(tick) + 4, "text-anchor": "end" }, this.write(tick)),
    ]);
    for (let ago = 0; ago < span; ago += mark) {
      const text = ago === 0 ? "now" : mark < 60_000 ? `−${ago / 1000} s` : `−${ago / 60_000} min`;
      parts.push(svg("text", { x: x(this.at - ago), y: height - 3, "text-anchor": ago ? "middle" : "end" }, text));
    }
    this.lines.forEach((line, number) => {
      const path = this.path(line, x, y);
      if (number === 0 && !this.log && path) parts.push(svg("path", { class: "area", d: area(path, y(0)) }));
      parts.push(svg("path", { class: `line-${number}`, d: path }));
    });
    const shown = this.nearest(x);
    if (shown && this.hovered !== null) parts.push(svg("line", { class: "cursor", x1: x(shown[0]), x2: x(shown[0]), y1: TOP, y2: height - BOTTOM }));
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(...parts);
    this.tell(shown);
  }

  nearest(x) {
    if (this.hovered === null) return this.points[this.points.length - 1];
    const distance = (point) => Math.abs(x(point[0]) - this.hovered);
    return this.points.reduce((best, point) => (best && distance(best) <= distance(point) ? best : point), undefined);
  }

  tell(point) {
    const keys = this.lines.map((line, number) => {
      const value = point ? line.of(point) : null;
      const mark = svg("svg", { "aria-hidden": "true", viewBox: "0 0 18 8" }, svg("line", { class: `line-${number}`, x1: 0, x2: 18, y1: 4, y2: 4 }));
      return make("span", {}, mark, line.name, make("b", {}, value === null ? "–" : this.write(value)));
    });
    if (point && this.hovered !== null) keys.unshift(make("span", {}, clock(point[0])));
    this.legend.replaceChildren(...keys);
  }

  path(line, x, y) {
    let path = "";
    let last = null;
    for (const point of this.points) {
      const value = line.of(point);
      if (value === null) continue;
      const begins = last === null || point[0] - last > this.gapMs;
      path += `${begins ? "M" : "L"}${x(point[0]).toFixed(1)} ${y(value).toFixed(1)}${begins ? "h0" : ""}`; // h0: a lone point is a dot
      last = point[0];
    }
    return path;
  }
}

function area(path, floor) {
  return path.split("M").filter(Boolean).map((part) => {
    const points = part.split("L");
    const [first, last] = [points[0], points[points.length - 1]].map((point) => point.split(" ")[0]);
    return `M${first} ${floor}L${part}L${last} ${floor}Z`;
  }).join("");
}

function steps(most) {
  const rough = (most || 1) / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  return Array.from({ length: Math.ceil((most || 1) / step) + 1 }, (_, i) => i * step);
}

function decades(values) {
  const real = values.filter((value) => value > 0);
  const low = Math.floor(Math.log10(Math.min(0.001, ...real)));
  const high = Math.max(low + 2, Math.ceil(Math.log10(Math.max(0.1, ...real))));
  return Array.from({ length: high - low + 1 }, (_, i) => 10 ** (low + i));
}

function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
